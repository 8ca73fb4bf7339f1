package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPercentileIsAMeasuredValue(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := 1; i <= 100; i++ {
		hundred = append(hundred, time.Duration(i))
	}
	for _, c := range []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0, 7},
		{[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{1, 2}, 0.5, 1},
		{[]time.Duration{1, 2, 3}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred[:10], 0.99, 10},
	} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("percentile %v of %d values is %d, not %d", c.p, len(c.sorted), got, c.want)
		}
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	values := []float64{5, 1, 4, 2}
	if least, median, most := spread(values); least != 1 || median != 3 || most != 5 {
		t.Errorf("spread of %v is %v, %v, %v", values, least, median, most)
	}
	if values[0] != 5 {
		t.Error("spread changed its argument")
	}
	if _, median, _ := spread([]float64{3, 9, 4}); median != 4 {
		t.Errorf("median is %v, not 4", median)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0.000", 0.1234: "0.123", 5.256: "5.26", 45.67: "45.7", 412.4: "412", 1082: "1,082", 5e6: "5,000,000", -1234: "-1,234",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is shown as %q, not %q", v, got, want)
		}
	}
}

func TestPeerFiguresAreComparedLikeWithLike(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		metric string
		p      params
		value  float64
		shown  string
		ratio  float64
	}{
		{"accept.rate", params{Clients: 64, Consumers: 1, PayloadBytes: 1024, Seconds: 15}, 4120, "412", 10},
		{"accept.p99", params{Clients: 64, Consumers: 1, PayloadBytes: 1024}, 39.3, "393", 10},
		{"accept.rate", params{Clients: 1, Consumers: 1, PayloadBytes: 1024}, 300, "", 0},
		{"accept.rate", params{Clients: 64, Consumers: 1, PayloadBytes: 10}, 9000, "", 0},
		{"e2e.rate", params{Clients: 64, Consumers: 5, PayloadBytes: 1024, Messages: 9}, 2164, "1,082", 2},
		{"e2e.rate", params{Clients: 64, Consumers: 3, PayloadBytes: 1024}, 2164, "", 0},
		{"requeue.all", params{Dead: 200_000, PayloadBytes: 1024}, 38.2, "382", 10},
		{"requeue.all", params{Dead: 5_000, PayloadBytes: 1024}, 1, "382 (200,000 dead)", 0},
		{"cycle.none", params{Dead: 5_000_000}, 14.5, "14,500", 1000},
		{"cycle.none", params{Dead: 100_000}, 1, "14,500 (5,000,000 dead)", 0},
	} {
		v := peerOf(c.metric, c.p, metrics[c.metric].higherBetter, c.value)
		if c.shown == "" {
			if v != nil {
				t.Errorf("%s (%s) is compared with the peer's %s", c.metric, c.p, v.Shown)
			}
			continue
		}
		if v == nil || v.Shown != c.shown || v.Ratio < c.ratio*0.999 || v.Ratio > c.ratio*1.001 {
			t.Errorf("%s (%s): peer is %+v, want %s and ratio %v", c.metric, c.p, v, c.shown, c.ratio)
		}
	}
}

func exampleReport() *report {
	r := newReport(sized("small"))
	r.Date = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.Database = database{Flavour: "MariaDB", Version: "10.11.6", Durable: true}
	for _, v := range []float64{4000, 4240, 4120} {
		r.record("accept.rate", params{Clients: 64, Consumers: 1, PayloadBytes: 1024, Seconds: 3}, v)
	}
	r.record("purge.answer", params{Dead: 10_000}, 0.5)
	r.expect("purge", "deletedCount", 10_000, 10_000)
	return r
}

func TestTable(t *testing.T) {
	t.Parallel()
	r := exampleReport()
	var b strings.Builder
	if err := r.writeTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-01-02T03:04:05Z", "MariaDB 10.11.6 (durable commits)",
		"accepted broadcasts    64 clients, 1 consumer, 1,024 B, 3 s  4,000   4,120  4,240  1/s     412   10.0\n",
		"purge: answered after  10,000 dead                           0.500   0.500  0.500  s\n",
		"All 1 checks held.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestWrongCountsAreInCapitals(t *testing.T) {
	t.Parallel()
	r := exampleReport()
	r.expect("requeue", "/dlq-status after the requeue", 0, 200_000)
	r.Database.Durable = false
	var b strings.Builder
	if err := r.writeTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"WRONG: REQUEUE: /DLQ-STATUS AFTER THE REQUEUE IS 200000, MUST BE 0", "1 OF 2 CHECKS FAILED", "NOT DURABLE",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestJSONHasSettingsWithEveryFigure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench.json")
	var b strings.Builder
	if err := publish(exampleReport(), path, &b); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	f := got.Figures[0]
	if f.Metric != "accept.rate" || f.Params.Clients != 64 || f.Median != 4120 || f.Peer == nil || f.Peer.Value != 412 {
		t.Errorf("the first figure is %+v", f)
	}
	if got.Cores == 0 || got.GoVersion == "" || got.Database.Version == "" || got.Settings.Size != "small" {
		t.Errorf("the report does not say what was measured on: %+v", got)
	}
}

func TestSumMetric(t *testing.T) {
	t.Parallel()
	const text = `# HELP x_sum is not a sample
x_sum{outcome="counted"} 1.5
x_sum{outcome="skipped"} 9
x_sum{outcome="failed"} 2e-1 1700000000000
x_summary 100
dead_job_count{channel="a{b}",consumer="k"} 7
plain 3
`
	notSkipped := func(labels string) bool { return !strings.Contains(labels, `"skipped"`) }
	for _, c := range []struct {
		name  string
		match func(string) bool
		want  float64
		found bool
	}{
		{"x_sum", notSkipped, 1.7, true},
		{"x_sum", nil, 10.7, true},
		{"dead_job_count", nil, 7, true},
		{"plain", nil, 3, true},
		{"absent", nil, 0, false},
	} {
		if got, found := sumMetric(text, c.name, c.match); found != c.found || got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%s is %v (found %v), want %v (%v)", c.name, got, found, c.want, c.found)
		}
	}
}

func TestSettingsRefuseNonsense(t *testing.T) {
	t.Parallel()
	for _, f := range []flags{
		{Clients: -1}, {Dead: maxDead + 1}, {Duration: -time.Second}, {Env: []string{"=x"}}, {Env: []string{"REDRIVE_X"}},
	} {
		if _, err := f.settings(); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
	s, err := flags{Size: "full", Dead: 5_000_000}.settings()
	if err != nil || s.Dead != 5_000_000 || s.Requeue != 200_000 || s.Repeat != 1 {
		t.Errorf("settings are %+v, error %v", s, err)
	}
}
