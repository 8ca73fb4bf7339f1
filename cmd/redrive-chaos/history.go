//go:build unix

package main

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// moment is a time of the run: microseconds since it began, by the monotonic clock of this process.
type moment int64

func (m moment) String() string { return fmt.Sprintf("%.3fs", float64(m)/1e6) }

func (m moment) add(d time.Duration) moment { return m + moment(d.Microseconds()) }

func (m moment) sub(o moment) time.Duration { return time.Duration(m-o) * time.Microsecond }

// outcome is what the caller of an operation may conclude from its answer.
type outcome string

const (
	ok      outcome = "ok"      // a 2xx: it was done
	refused outcome = "refused" // a 4xx, or the request was never sent: it was not done
	unknown outcome = "unknown" // no answer or a 5xx: it may have been done
)

// The kinds of operations.
const (
	opBroadcast  = "broadcast"
	opListDead   = "list-dead"
	opRequeueOne = "requeue-one"
	opRequeueAll = "requeue-all"
	opPurgeOne   = "purge-one"
	opPurgeAll   = "purge-all"
	opQueued     = "queued-jobs"
	opPullState  = "pull-state"
	opDLQStatus  = "dlq-status"
	opJobStatus  = "job-status"
	opMetrics    = "metrics"

	opLetters       = "list-letters" // a page
	opRetryLetter   = "retry-letter"
	opResolveLetter = "resolve-letter"
	opExpireLetter  = "expire-letter"
	opExpireOld     = "expire-old-letters" // all whose last failure is more than a day ago

	opBeginRun = "begin-run" // of an engine, on demand
	opAlert    = "alert"
)

// op is one request to an instance.
type op struct {
	Seq      int64   `json:"seq"`
	Kind     string  `json:"kind"`
	Instance int     `json:"instance"`
	Start    moment  `json:"start"`
	End      moment  `json:"end"`
	Status   int     `json:"status"` // 0: no answer
	Outcome  outcome `json:"outcome"`
	Err      string  `json:"err,omitempty"`
	Timeout  bool    `json:"timeout,omitempty"` // the caller lost patience

	Channel  string `json:"channel,omitempty"`
	Consumer string `json:"consumer,omitempty"` // channel/consumer, as everywhere here
	Message  string `json:"message,omitempty"`  // the id known afterwards; empty if it stayed unknown
	Job      string `json:"job,omitempty"`
	State    string `json:"state,omitempty"` // pull-state: the state asked for
	Work     *work  `json:"work,omitempty"`  // what an engine is asked for

	Letter string       `json:"letter,omitempty"` // the row key of a dead letter
	Seen   moment       `json:"seen,omitempty"`   // when it was listed
	Retry  *retryAnswer `json:"retry,omitempty"`

	// Of broadcasts. Tag is in the body and so in every receipt; attempts of one message share it.
	Tag        string `json:"tag,omitempty"`
	OwnID      bool   `json:"ownId,omitempty"`
	Scheduled  moment `json:"scheduledFor,omitempty"`
	Want       int    `json:"want,omitempty"` // the one refusal it must get, unless the service is unavailable
	RetryAfter string `json:"retryAfter,omitempty"`

	Total  *int64           `json:"total,omitempty"`  // requeue, purge and expiring the old: how many, as reported
	Before *int64           `json:"before,omitempty"` // and those in the database before and after, where nothing
	After  *int64           `json:"after,omitempty"`  // else was going on
	Counts map[string]int64 `json:"counts,omitempty"` // dlq-status, metrics: dead by consumer, list-letters at rest: listed; job-status: by consumer and status
}

// receipt is one delivery as the consumer saw it.
type receipt struct {
	Seq      int64  `json:"seq"`
	Consumer string `json:"consumer"`
	Message  string `json:"message"`
	Tag      string `json:"tag"`
	Job      string `json:"job,omitempty"` // its webhook-id
	Start    moment `json:"start"`
	End      moment `json:"end"`            // when it was answered or given up; 0: never
	Answer   int    `json:"answer"`         // 0: none
	Gone     bool   `json:"gone,omitempty"` // the broker had hung up before the answer
	Flaw     string `json:"flaw,omitempty"` // what was wrong with the request itself
}

// The kinds of faults.
const (
	faultKill     = "kill -9 instance"
	faultTerm     = "SIGTERM instance"
	faultStop     = "SIGSTOP instance"
	faultDatabase = "kill -9 database"
	faultConsumer = "consumer"
)

// fault is a thing broken: begun at Start, in effect from Down to Up, over (ready again) at End.
type fault struct {
	Kind   string `json:"kind"`
	Target string `json:"target"` // instance number or consumer
	What   string `json:"what,omitempty"`
	Start  moment `json:"start"`
	Down   moment `json:"down"`
	Up     moment `json:"up"`
	End    moment `json:"end"`
}

// overlaps says whether the fault was going on between two times.
func (f fault) overlaps(from, to moment) bool { return f.Start <= to && f.End >= from }

// tally is what one statement saw of one consumer's dead jobs.
type tally struct {
	Dead      int64 `json:"dead"`    // COUNT of status DEAD
	Counted   int64 `json:"counted"` // COUNT of dlqCounted=1
	DeadCount int64 `json:"deadCount"`
	Delta     int64 `json:"delta"`   // SUM(dlqDelta)
	Pending   int64 `json:"pending"` // COUNT of Pending dead letters of its jobs
}

// snapshot is one look into the database, in one statement.
type snapshot struct {
	Start moment           `json:"start"`
	End   moment           `json:"end"`
	Of    map[string]tally `json:"of"`
}

// sighting is the jobs that a look into the database found finished or shelved.
type sighting struct {
	Start     moment   `json:"start"`
	End       moment   `json:"end"`
	Delivered []string `json:"delivered,omitempty"`
	Dead      []string `json:"dead,omitempty"`
	Shelved   []string `json:"shelved,omitempty"`
}

// incident is a thing that must not happen and that is no request: an instance that ended by itself.
type incident struct {
	At   moment `json:"at"`
	What string `json:"what"`
}

// finalJob is a row of job, and finalMessage one of message, when all was at rest.
type finalJob struct {
	Job      string `json:"job"`
	Message  string `json:"message"`
	Consumer string `json:"consumer"`
	Status   int    `json:"status"`
	Retries  int    `json:"retries"`
	NoRetry  bool   `json:"noRetry,omitempty"`
}

// finalLetter is a dead letter of a delivery then.
type finalLetter struct {
	Letter   string `json:"letter"` // its row key
	Job      string `json:"job"`
	Consumer string `json:"consumer"`
	Status   string `json:"status"`
	Old      bool   `json:"old,omitempty"` // its last failure is more than a day ago
}

type finalMessage struct {
	Channel    string `json:"channel"`
	Message    string `json:"message"`
	Dispatched bool   `json:"dispatched"`
}

// rest is the counts at a time when nothing moved.
type rest struct {
	Label     string           `json:"label"`
	At        moment           `json:"at"`
	Left      map[string]int64 `json:"left,omitempty"` // jobs still QUEUED or INFLIGHT, schedules still open, when patience ended
	Uncounted int64            `json:"uncounted"`      // rows with a dlqDelta
	Tallies   map[string]tally `json:"tallies"`
	Jobs      map[string]int64 `json:"jobs"`  // GROUP BY consumer and status
	Shown     []op             `json:"shown"` // what each instance answered
	Engines   []engineJob      `json:"engines,omitempty"`
	Works     []workDone       `json:"works,omitempty"`
}

// consumerInfo is a consumer of the run.
type consumerInfo struct {
	Key     string `json:"key"` // channel/consumer
	Channel string `json:"channel"`
	Pull    bool   `json:"pull,omitempty"`
	Purged  bool   `json:"purged,omitempty"`  // purgers work on it
	Redrive bool   `json:"redrive,omitempty"` // requeuers work on it
	Triage  bool   `json:"triage,omitempty"`  // its dead letters are retried, resolved and expired one by one
	Engine  string `json:"engine,omitempty"`  // the engine that it is, which works on its channel
	Retries int    `json:"retries,omitempty"` // of an engine's
}

// runInfo is the head of a history.
type runInfo struct {
	Seed      uint64         `json:"seed"`
	Instances int            `json:"instances"`
	Flavour   string         `json:"flavour"`
	Duration  time.Duration  `json:"duration"`
	Started   time.Time      `json:"started"`
	Consumers []consumerInfo `json:"consumers"`
}

// history is all that is known of a run.
type history struct {
	Info      runInfo
	Ops       []op
	Receipts  []receipt
	Faults    []fault
	Snapshots []snapshot
	Sightings []sighting
	Incidents []incident
	Starts    int // processes started
	Jobs      []finalJob
	Messages  []finalMessage
	Letters   []finalLetter
	Rests     []rest
	Runs      []engineRun
}

// recorder collects a history from many goroutines.
type recorder struct {
	began time.Time
	mu    sync.Mutex
	seq   int64
	h     history
	open  []*receipt
	runs  []*engineRun
}

func newRecorder(info runInfo) *recorder {
	began := time.Now()
	info.Started = began.UTC()
	return &recorder{began: began, h: history{Info: info}}
}

func (r *recorder) now() moment { return r.at(time.Now()) }

func (r *recorder) at(t time.Time) moment { return moment(t.Sub(r.began).Microseconds()) }

func (r *recorder) op(o op) op {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	o.Seq = r.seq
	r.h.Ops = append(r.h.Ops, o)
	return o
}

// receive notes a delivery that has just come in; answered says how it ended.
func (r *recorder) receive(rc receipt) *receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	rc.Seq = r.seq
	p := &rc
	r.open = append(r.open, p)
	return p
}

func (r *recorder) answered(p *receipt, answer int, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Answer, p.Gone, p.End = answer, gone, r.now()
}

// engineRun notes a run that has just come to the endpoint, which goes on writing to it under the recorder's lock.
func (r *recorder) engineRun(e *engineRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, e)
}

func (r *recorder) fault(f fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Faults = append(r.h.Faults, f)
}

func (r *recorder) incident(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Incidents = append(r.h.Incidents, incident{At: r.now(), What: fmt.Sprintf(format, args...)})
}

// edit changes the history under the recorder's lock.
func (r *recorder) edit(f func(*history)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h)
}

// history returns what was recorded so far.
func (r *recorder) history() *history {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.h
	h.Receipts = make([]receipt, 0, len(r.open))
	for _, p := range r.open {
		h.Receipts = append(h.Receipts, *p)
	}
	for _, e := range r.runs {
		run := *e
		run.Posts, run.Polls = slices.Clone(e.Posts), slices.Clone(e.Polls)
		h.Runs = append(h.Runs, run)
	}
	return &h
}
