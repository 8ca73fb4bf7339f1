// Package telemetry makes what an instance is watched by: the logger, the registry of Prometheus metrics and the
// handler that serves them.
//
// It knows no metric of the product: each package owns its metrics and registers them on the registry that it is
// given. It sends nothing anywhere.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The formats of a log.
const (
	FormatJSON = "json"
	FormatText = "text"
)

// maxScrapes bounds the scrapes at a time, each of which asks the database a few questions.
const maxScrapes = 4

// NewLogger makes a logger that writes events of at least level (debug, info, warn or error) to w, in FormatJSON or
// FormatText.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	least, err := ParseLevel(level)
	if err != nil {
		return nil, err
	}
	opts := &slog.HandlerOptions{Level: least}
	switch format {
	case FormatJSON:
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	case FormatText:
		return slog.New(slog.NewTextHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: must be %s or %s", format, FormatJSON, FormatText)
}

// ParseLevel reads debug, info, warn or error.
func ParseLevel(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q: must be debug, info, warn or error", name)
}

// NewRegistry makes a registry with the metrics of the Go runtime and of the process, and redrive_build_info.
func NewRegistry(build Build) (*prometheus.Registry, error) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "redrive_build_info",
		Help: "Always 1; its labels say what program this is.",
		ConstLabels: prometheus.Labels{
			"version": build.Version, "revision": build.Revision, "goversion": build.Go,
		},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return registry, nil
}

// MetricsHandler serves what is registered. A collector that fails, as those that read the database do while it is
// away, costs its own metrics only: the others are served and log gets the reason.
func MetricsHandler(registry *prometheus.Registry, log *slog.Logger) http.Handler {
	return promhttp.InstrumentMetricHandler(registry, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		Registry:            registry,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: maxScrapes,
	}))
}
