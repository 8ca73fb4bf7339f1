package main

import "fmt"

// metric is a kind of figure.
type metric struct {
	title, unit  string
	higherBetter bool
}

// metrics are all kinds of figures, by the name that the JSON has.
var metrics = map[string]metric{
	"accept.rate":         {"accepted broadcasts", "1/s", true},
	"accept.p50":          {"accept latency p50", "ms", false},
	"accept.p99":          {"accept latency p99", "ms", false},
	"e2e.rate":            {"jobs end to end", "1/s", true},
	"e2e.off":             {"jobs end to end, history off", "1/s", true},
	"idle.p50":            {"POST to receipt when idle p50", "ms", false},
	"idle.p99":            {"POST to receipt when idle p99", "ms", false},
	"status.dlq.p50":      {"/dlq-status p50", "ms", false},
	"status.dlq.p99":      {"/dlq-status p99", "ms", false},
	"status.metrics.p50":  {"/metrics p50", "ms", false},
	"status.metrics.p99":  {"/metrics p99", "ms", false},
	"status.jobs.p50":     {"/job-status p50", "ms", false},
	"status.jobs.p99":     {"/job-status p99", "ms", false},
	"list.dlq.p50":        {"/api/dlq, a page of 50, p50", "ms", false},
	"list.dlq.p99":        {"/api/dlq, a page of 50, p99", "ms", false},
	"cycle.none":          {"counting cycle, no new deaths", "ms", false},
	"cycle.new":           {"counting cycle(s), new deaths", "ms", false},
	"purge.answer":        {"purge: answered after", "s", false},
	"purge.memory":        {"purge: broker's peak memory", "MB", false},
	"requeue.answer":      {"requeue: answered after", "s", false},
	"requeue.first":       {"requeue: first delivery after", "s", false},
	"requeue.all":         {"requeue: all delivered after", "s", false},
	"requeue.memory":      {"requeue: broker's peak memory", "MB", false},
	"requeue.late.before": {"another's retries: worst lateness before", "ms", false},
	"requeue.late.p50":    {"another's retries: lateness p50 during", "ms", false},
	"requeue.late.p99":    {"another's retries: lateness p99 during", "ms", false},
	"requeue.late.worst":  {"another's retries: worst lateness during", "ms", false},
	"pull.p50":            {"queued-jobs p50", "ms", false},
	"pull.p99":            {"queued-jobs p99", "ms", false},

	"history.all.p50":         {"/api/history p50", "ms", false},
	"history.all.p99":         {"/api/history p99", "ms", false},
	"history.engine.p50":      {"/api/history of an engine p50", "ms", false},
	"history.engine.p99":      {"/api/history of an engine p99", "ms", false},
	"history.status.p50":      {"/api/history, engine, status p50", "ms", false},
	"history.status.p99":      {"/api/history, engine, status p99", "ms", false},
	"history.instance.p50":    {"/api/history of an instance p50", "ms", false},
	"history.instance.p99":    {"/api/history of an instance p99", "ms", false},
	"history.correlation.p50": {"/api/history of a correlation id p50", "ms", false},
	"history.correlation.p99": {"/api/history of a correlation id p99", "ms", false},
	"history.dates.p50":       {"/api/history, engine, operation, dates p50", "ms", false},
	"history.dates.p99":       {"/api/history, engine, operation, dates p99", "ms", false},
}

const peerLabel = "peer, as measured earlier on a machine of this size (2 cores, MariaDB 10.11, durable commits)"

// peerFigure is what the peer reached, and with which settings.
type peerFigure struct {
	metric string
	value  float64
	shown  string                     // as the table shows it
	at     params                     // the settings of the figure
	near   func(ours, at params) bool // whether to show it beside a figure of ours
}

// Where settings differ in a size alone, the peer's figure is shown with its own and no ratio is drawn.
func always(params, params) bool { return true }

// sameLoad compares what matters where the number of messages or the seconds do not.
func sameLoad(ours, at params) bool {
	return ours.Clients == at.Clients && ours.Consumers == at.Consumers &&
		ours.PayloadBytes == at.PayloadBytes && ours.Rate == at.Rate
}

var peerFigures = []peerFigure{
	{"accept.rate", 412, "412", params{Clients: 64, Consumers: 1, PayloadBytes: 1024}, sameLoad},
	{"accept.p99", 393, "393", params{Clients: 64, Consumers: 1, PayloadBytes: 1024}, sameLoad},
	{"e2e.rate", 500, "450-545", params{Clients: 64, Consumers: 1, PayloadBytes: 1024}, sameLoad},
	{"e2e.rate", 1082, "1,082", params{Clients: 64, Consumers: 5, PayloadBytes: 1024}, sameLoad},
	{"idle.p50", 5.2, "5.2", params{Consumers: 1, Rate: 50, PayloadBytes: 1024}, sameLoad},
	{"idle.p99", 7.5, "7.5", params{Consumers: 1, Rate: 50, PayloadBytes: 1024}, sameLoad},
	{"cycle.none", 14_500, "14,500", params{Dead: 5_000_000}, always},
	{"requeue.first", 30, "30", params{Dead: 200_000, PayloadBytes: 1024}, always},
	{"requeue.all", 382, "382", params{Dead: 200_000, PayloadBytes: 1024}, always},
	{"requeue.memory", 766, "766", params{Dead: 200_000, PayloadBytes: 1024}, always},
}

// peerView is the peer's figure beside one of ours.
type peerView struct {
	Value float64 `json:"value"`
	Shown string  `json:"shown"`
	At    params  `json:"settings"`
	// Ratio is how many times better ours is; 0 when the settings are too different to say.
	Ratio float64 `json:"ratio,omitempty"`
}

// peerOf finds the peer's figure to show beside value.
func peerOf(metric string, ours params, higherBetter bool, value float64) *peerView {
	for _, p := range peerFigures {
		if p.metric != metric || !p.near(ours, p.at) {
			continue
		}
		v := &peerView{Value: p.value, Shown: p.shown, At: p.at}
		if !alike(ours, p.at) {
			v.Shown += fmt.Sprintf(" (%s)", params{Dead: p.at.Dead})
			return v
		}
		if value > 0 {
			if v.Ratio = p.value / value; higherBetter {
				v.Ratio = value / p.value
			}
		}
		return v
	}
	return nil
}

// alike says whether a ratio of figures with these settings means something.
func alike(ours, at params) bool {
	return ours.Dead == at.Dead && ours.PayloadBytes == at.PayloadBytes
}

func (v *peerView) ratio() string {
	if v.Ratio == 0 {
		return ""
	}
	return number(v.Ratio)
}
