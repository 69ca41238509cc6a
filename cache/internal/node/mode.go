package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// ErrNoMode says that kube-proxy did not tell its mode.
var ErrNoMode = errors.New("the mode of kube-proxy is not known")

// DefaultModeAt are the addresses at which kube-proxy serves its metrics by default.
func DefaultModeAt() []string { return []string{"127.0.0.1:10249", "[::1]:10249"} }

// modeTimeout bounds one question to kube-proxy.
const modeTimeout = 2 * time.Second

// DetectMode asks kube-proxy at its metrics addresses (host:port; none: DefaultModeAt) for its mode. The link kube-ipvs0
// is no evidence: it stays, with frozen services, when kube-proxy leaves IPVS. So there is no guess: without an answer
// the error wraps ErrNoMode and says what to do.
func DetectMode(ctx context.Context, at []string) (Mode, error) {
	if len(at) == 0 {
		at = DefaultModeAt()
	}
	client := &http.Client{
		Timeout: modeTimeout,
		Transport: &http.Transport{
			Proxy:             nil, // the node itself is asked, whatever the environment says of proxies
			DialContext:       (&net.Dialer{Timeout: modeTimeout}).DialContext,
			DisableKeepAlives: true,
		},
	}
	var errs []error
	for _, a := range at {
		m, err := askMode(ctx, client, "http://"+a+"/proxyMode")
		if err == nil {
			return m, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("%w (%w): say it with -mode, or give kube-proxy's metricsBindAddress with -kube-proxy", ErrNoMode, errors.Join(errs...))
}

func askMode(ctx context.Context, client *http.Client, url string) (Mode, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("asking kube-proxy: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if err != nil {
		return "", fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("asking kube-proxy: %s answered %s", url, resp.Status)
	}
	m, err := ParseMode(strings.TrimSpace(string(body)))
	if err != nil {
		return "", fmt.Errorf("asking kube-proxy at %s: %w", url, err)
	}
	return m, nil
}
