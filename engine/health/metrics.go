package health

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/storage"
)

var healthyDesc = prometheus.NewDesc("redrive_destination_healthy",
	"1: the destination of the push consumer answers probes; 0: it does not. Left out while that is unknown.", []string{"channel", "consumer"}, nil)

// CollectorOptions configures a collector. Zero values mean the default that is named.
type CollectorOptions struct {
	Store interface { // required: storage.Store
		DestinationHealth(ctx context.Context) ([]storage.DestinationHealth, error)
	}
	Timeout time.Duration // of the read; default 5 s
	Log     *slog.Logger  // default slog.Default()
}

// collector reads the database at every scrape, so every instance shows the same.
type collector struct {
	o      CollectorOptions
	errors prometheus.Counter

	mu      sync.Mutex
	failing bool
}

// NewCollector makes redrive_destination_healthy{channel,consumer}, which is read at each scrape by one statement. What cannot be
// read is left out and counted (redrive_destination_scrape_errors_total).
func NewCollector(o CollectorOptions) prometheus.Collector {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &collector{o: o, errors: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "redrive_destination_scrape_errors_total",
		Help: "Scrapes that could not read redrive_destination_healthy from the database; its series were left out.",
	})}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- healthyDesc
	c.errors.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Timeout)
	defer cancel()
	all, err := c.o.Store.DestinationHealth(ctx)
	c.note(err)
	for _, d := range all {
		var value float64
		switch d.State {
		case storage.Healthy:
			value = 1
		case storage.Unhealthy:
		default:
			continue
		}
		// An id that is no label costs its sample, not the scrape.
		if m, err := prometheus.NewConstMetric(healthyDesc, prometheus.GaugeValue, value, d.ChannelID, d.ConsumerID); err == nil {
			ch <- m
		} else {
			c.errors.Inc()
		}
	}
	c.errors.Collect(ch)
}

// note says once when scrapes begin to come out incomplete, and once when they are whole again.
func (c *collector) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.errors.Inc()
	}
	if failing := err != nil; failing != c.failing {
		if c.failing = failing; failing {
			c.o.Log.Warn("redrive_destination_healthy is missing from scrapes: the database cannot be read", "error", err)
		} else {
			c.o.Log.Info("redrive_destination_healthy is in scrapes again")
		}
	}
}
