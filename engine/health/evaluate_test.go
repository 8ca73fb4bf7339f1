package health_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine/health"
	"github.com/redrive-mq/redrive/storage"
)

// Each letter is a probe: + there, - not. Each line says what is known after each of them.
func TestEvaluate(t *testing.T) {
	t.Parallel()
	short := map[storage.HealthState]string{storage.HealthUnknown: "?", storage.Healthy: "h", storage.Unhealthy: "u"}
	for _, tc := range []struct {
		name         string
		thresholds   health.Thresholds
		probes, want string
	}{
		{"up", health.Thresholds{}, "+++", "hhh"},
		{"never up", health.Thresholds{}, "-----", "??uuu"},
		{"two failures are none", health.Thresholds{}, "+--+--+", "hhhhhhh"},
		{"three are", health.Thresholds{}, "+---", "hhhu"},
		{"one success heals", health.Thresholds{}, "---+-", "??uhh"},
		{"one failure is enough", health.Thresholds{Failures: 1}, "+-+-", "huhu"},
		{"two successes heal", health.Thresholds{Successes: 2}, "+-+++---+-++", "???hhhhuuuuh"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			d := storage.DestinationHealth{ConsumerKey: 7, ChannelID: "c", ConsumerID: "k", State: storage.HealthUnknown}
			var got strings.Builder
			for i, probe := range tc.probes {
				before, f := d, health.Finding{Latency: time.Second}
				if probe == '-' {
					f.Class, f.Error = health.ClassDNS, "no such host"
				}
				at = at.Add(time.Minute)
				d = health.Evaluate(before, f, at, tc.thresholds)
				got.WriteString(short[d.State])
				wantSince := before.Since
				if i == 0 || d.State != before.State {
					wantSince = at
				}
				if !d.Since.Equal(wantSince) || !d.CheckedAt.Equal(at) || d.Class != f.Class || d.Error != f.Error || d.Latency != f.Latency ||
					d.ConsumerKey != 7 || d.ChannelID != "c" || d.ConsumerID != "k" || (d.Failures == 0) == (d.Successes == 0) {
					t.Errorf("after probe %d: %+v", i, d)
				}
			}
			if got.String() != tc.want {
				t.Errorf("got %s, want %s", got.String(), tc.want)
			}
		})
	}
	full := storage.DestinationHealth{State: storage.Unhealthy, Failures: math.MaxUint32}
	if d := health.Evaluate(full, health.Finding{Class: health.ClassTLS}, time.Now(), health.Thresholds{}); d.Failures != math.MaxUint32 || d.State != storage.Unhealthy {
		t.Errorf("the count overflows: %+v", d)
	}
}
