package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/taint"
)

// validate lists every problem of the command line.
func (o options) validate() error {
	var errs []error
	check := func(flagName string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("-%s: %w", flagName, err))
		}
	}
	_, err := o.discovery("")
	check("local-ip, -cluster-dns, -cluster-domain or -host-searches", err)
	check("fallback-nameserver or -not-ready", o.policy().Validate())
	check("ready-on or -ready-off", o.readiness().Validate())
	o.validateNames(check)
	o.validateAddresses(check)
	oneOf := func(flagName, value string, words ...string) {
		if !slices.Contains(words, value) {
			check(flagName, fmt.Errorf("%q: want %s", value, strings.Join(words, " or ")))
		}
	}
	oneOf("default-injection", o.defaultInjection, poddns.Enabled, poddns.Disabled)
	oneOf("certs", o.certMode, certsSelfManaged, certsFiles)
	oneOf("log-format", o.logFormat, "text", "json")
	if o.certMode == certsSelfManaged && o.leafDuration >= o.caDuration {
		check("cert-duration", fmt.Errorf("%s: want less than the life of the CA, %s", o.leafDuration, o.caDuration))
	}
	notNegative := func(flagName string, d time.Duration) {
		if d < 0 {
			check(flagName, fmt.Errorf("%s: want no negative duration", d))
		}
	}
	notNegative("cert-overlap", o.certOverlap)
	notNegative("replace-grace", o.replaceGrace)
	notNegative("shutdown-delay", o.shutdownDelay)
	if o.certMode == certsSelfManaged && o.leafDuration < 4*o.certOverlap {
		check("cert-overlap", fmt.Errorf("%s: want at most a quarter of a certificate's life, %s", o.certOverlap, o.leafDuration))
	}
	if o.startupTaint != "" {
		check("startup-taint", taint.Config{Key: o.startupTaint}.Validate())
	}
	return errors.Join(errs...)
}

// validateNames checks what names objects of the cluster, by the API's own rules.
func (o options) validateNames(check func(flagName string, err error)) {
	wrong := func(flagName, value string, problems []string) {
		if len(problems) > 0 {
			check(flagName, fmt.Errorf("%q: %s", value, strings.Join(problems, "; ")))
		}
	}
	wrong("namespace", o.namespace, validation.IsDNS1123Label(o.namespace))
	wrong("cache-namespace", o.cacheNamespace, validation.IsDNS1123Label(o.cacheNamespace))
	wrong("service", o.service, validation.IsDNS1035Label(o.service))
	wrong("ca-secret", o.caSecret, validation.IsDNS1123Subdomain(o.caSecret))
	wrong("webhook-configuration", o.configuration, validation.IsDNS1123Subdomain(o.configuration))
	for _, host := range listed(o.certHosts) {
		if net.ParseIP(host) == nil {
			wrong("cert-hosts", host, validation.IsDNS1123Subdomain(host))
		}
	}
	if _, err := labels.Parse(o.cacheSelector); err != nil {
		check("cache-selector", err)
	}
}

// validateAddresses checks what is listened on.
func (o options) validateAddresses(check func(flagName string, err error)) {
	listens := func(flagName, address string) {
		if _, port, err := net.SplitHostPort(address); err != nil {
			check(flagName, fmt.Errorf("%q: want host:port or :port", address))
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			check(flagName, fmt.Errorf("%q: want a port from 0 to 65535", address))
		}
	}
	listens("listen-address", o.listenAddress)
	if o.metricsAddress != "" {
		listens("metrics-address", o.metricsAddress)
	}
	if o.probeAddress != "" {
		listens("probe-address", o.probeAddress)
	}
}
