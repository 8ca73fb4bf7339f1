package outbound_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"code.dny.dev/ssrf"

	"github.com/redrive-mq/redrive/internal/outbound"
)

func get(t *testing.T, client *http.Client, url string) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// A private address is refused as it is dialled, whatever name led to it, and a redirect is an answer, not an order.
func TestClient(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, "/again", http.StatusFound)
	}))
	t.Cleanup(server.Close)
	strict := outbound.NewClient(outbound.Options{})
	t.Cleanup(strict.CloseIdleConnections)
	for _, url := range []string{server.URL, "http://localhost:1/", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/", "http://[::1]:1/"} {
		if _, err := get(t, strict, url); !errors.Is(err, ssrf.ErrProhibitedIP) {
			t.Errorf("%s: %v", url, err)
		}
	}
	allowed := outbound.NewClient(outbound.Options{AllowPrivate: true})
	t.Cleanup(allowed.CloseIdleConnections)
	if code, err := get(t, allowed, server.URL); err != nil || code != http.StatusFound || asked != 1 {
		t.Errorf("answered %d, %v; asked %d times", code, err, asked)
	}
}
