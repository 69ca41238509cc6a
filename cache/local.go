package main

import (
	"errors"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/local"
	"github.com/nodedns/nodedns/cache/internal/resolve"
)

// locals makes what a block answers on the spot, in CoreDNS's order: templates, then hosts, and whoami when nothing else has
// an answer.
func (b *builder) locals(block *corefile.Block) (first []resolve.Local, last resolve.Local, err error) {
	var own []string
	for _, z := range block.Zones {
		own = append(own, z.Name)
	}
	if len(block.Templates) > 0 {
		t, err := templates(block.Templates, own)
		if err != nil {
			return nil, nil, err
		}
		first = append(first, t)
	}
	if h := block.Hosts; h != nil {
		first = append(first, local.NewHosts(local.HostsConfig{
			File: h.File, Inline: h.Inline, Zones: orElse(h.Zones, own), TTL: h.TTL, Reload: h.Reload, NoReverse: h.NoReverse,
			Fallthrough: h.Fallthrough, FallthroughUnsupported: h.FallthroughUnsupported, Log: b.log,
		}))
	}
	if block.WhoAmI {
		last = local.WhoAmI{}
	}
	return first, last, nil
}

func orElse(zones, own []string) []string {
	if len(zones) > 0 {
		return zones
	}
	return own
}

// templates compiles a block's templates, each by itself first, so that a fault is reported with its line.
func templates(ts []*corefile.Template, own []string) (*local.Templates, error) {
	var cfgs []local.TemplateConfig
	var errs []error
	for _, t := range ts {
		cfg := local.TemplateConfig{
			Zones: orElse(t.Zones, own), Class: t.Class, Type: t.Type, Match: t.Match, Answer: t.Answer, Authority: t.Authority,
			Additional: t.Additional, Rcode: t.Rcode, Fallthrough: t.Fallthrough,
		}
		if t.EDE != nil {
			cfg.EDECode, cfg.EDEText = t.EDE.Code, t.EDE.Text
		}
		if _, err := local.NewTemplates([]local.TemplateConfig{cfg}); err != nil {
			errs = append(errs, &corefile.Problem{Pos: t.Pos, Directive: "template", Text: strings.ReplaceAll(err.Error(), "\n", "; ")})
		}
		cfgs = append(cfgs, cfg)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return local.NewTemplates(cfgs)
}
