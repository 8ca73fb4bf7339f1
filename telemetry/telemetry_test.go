package telemetry_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/telemetry"
)

func TestNewLogger(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level, format, want string
		fails               bool
	}{
		{level: "info", format: "json", want: `"msg":"shown"`},
		{level: "info", format: "text", want: `msg=shown`},
		{level: "error", format: "json", want: ""},
		{level: "loud", format: "json", fails: true},
		{level: "INFO", format: "json", fails: true},
		{level: "info", format: "xml", fails: true},
	} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(&out, c.level, c.format)
		if (err != nil) != c.fails {
			t.Fatalf("%s, %s: error %v", c.level, c.format, err)
		}
		if c.fails {
			continue
		}
		log.Debug("hidden")
		log.Info("shown")
		if !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "hidden") || c.want == "" && out.Len() > 0 {
			t.Errorf("%s, %s wrote %q", c.level, c.format, out.String())
		}
	}
}

// failing is a collector whose database is away.
type failing struct{ desc *prometheus.Desc }

func (f failing) Describe(ch chan<- *prometheus.Desc) { ch <- f.desc }
func (f failing) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(f.desc, errors.New("no database"))
}

func TestMetricsSurviveACollectorThatFails(t *testing.T) {
	t.Parallel()
	registry, err := telemetry.NewRegistry(telemetry.Build{Version: "v1", Revision: "abc", Go: "go"})
	if err != nil {
		t.Fatal(err)
	}
	registry.MustRegister(failing{prometheus.NewDesc("dead_job_count", "", nil, nil)})
	var logged bytes.Buffer
	server := httptest.NewServer(telemetry.MetricsHandler(registry, slog.New(slog.NewTextHandler(&logged, nil))))
	defer server.Close()
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, error %v", resp.StatusCode, err)
	}
	for _, want := range []string{`redrive_build_info{goversion="go",revision="abc",version="v1"} 1`, "go_goroutines ", "process_start_time_seconds "} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if !strings.Contains(logged.String(), "no database") {
		t.Errorf("the log does not tell the reason: %q", logged.String())
	}
}

func TestReadBuild(t *testing.T) {
	t.Parallel()
	b := telemetry.ReadBuild()
	if b.Version == "" || b.Revision == "" || !strings.HasPrefix(b.Go, "go") {
		t.Errorf("%+v", b)
	}
}
