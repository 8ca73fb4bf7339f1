package workflowdb

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/cschleiden/go-workflows/workflow"
)

// wake wakes everybody who waits. The zero value is ready.
type wake struct {
	mu sync.Mutex
	ch chan struct{}
}

// listen returns a channel that the next call of all closes. Who listens first and looks then misses nothing.
func (w *wake) listen() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

func (w *wake) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}

// await claims until there is something, looking again whenever it is woken. It returns nil when ctx ends.
func await[T any](ctx context.Context, w *wake, claim func() (*T, error)) (*T, error) {
	for {
		woken := w.listen()
		select {
		case <-ctx.Done():
			return nil, nil
		default:
		}
		if task, err := claim(); task != nil || err != nil {
			return task, err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// poller is the one goroutine of a backend that looks for work. It starts when somebody first waits for some.
type poller struct {
	idle time.Duration

	mu      sync.Mutex
	started bool
	queues  map[table]map[workflow.Queue]bool // that somebody waits for
	next    time.Time                         // of the next look

	sooner chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Looks for what is due soon are at least so far apart: a due time is rounded, and the two clocks run differently.
const shortestLook = time.Millisecond

func (p *poller) init(idle time.Duration) {
	p.idle = idle
	p.queues = map[table]map[workflow.Queue]bool{instances: {}, activities: {}}
	p.sooner = make(chan struct{}, 1)
	p.ctx, p.cancel = context.WithCancel(context.Background())
}

// watch has the poller look for work of these queues from now on.
func (b *Backend) watch(t table, queues []workflow.Queue) {
	p := &b.poller
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, queue := range queues {
		p.queues[t][queue] = true
	}
	if !p.started && p.ctx.Err() == nil {
		p.started = true
		p.next = time.Now().Add(p.idle)
		p.done.Go(b.poll)
	}
}

func (p *poller) stop() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.done.Wait()
}

// within has the next look take place in d, unless an earlier one is planned.
func (p *poller) within(d time.Duration) {
	at := time.Now().Add(max(d, shortestLook))
	p.mu.Lock()
	defer p.mu.Unlock()
	if at.Before(p.next) {
		p.next = at
		select {
		case p.sooner <- struct{}{}:
		default:
		}
	}
}

// poll looks for work until the poller stops. An outage is logged when it begins and when it is over, not at each look.
func (b *Backend) poll() {
	p := &b.poller
	failing := false
	for {
		p.mu.Lock()
		wait := time.Until(p.next)
		p.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-p.ctx.Done():
			timer.Stop()
			return
		case <-p.sooner:
			timer.Stop()
			continue
		case <-timer.C:
		}
		p.mu.Lock()
		p.next = time.Now().Add(p.idle) // before the look: who plans an earlier one meanwhile is heard
		p.mu.Unlock()
		err := b.look(p.ctx)
		if p.ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			if failed {
				b.log.Warn("cannot look for durable orchestrations to go on with", "error", err)
			} else {
				b.log.Info("again able to look for durable orchestrations to go on with")
			}
		}
	}
}

// look asks when work of the watched queues is due, wakes those who wait for what is, and plans for what will be.
func (b *Backend) look(ctx context.Context) error {
	var parts []string
	var args []any
	b.poller.mu.Lock()
	for t, queues := range b.poller.queues {
		for queue := range queues {
			for _, when := range []string{"<=", ">"} { // each part reads one entry of an index
				parts = append(parts, "(SELECT ?, TIMESTAMPDIFF(MICROSECOND, NOW(6), dueAt) FROM "+string(t)+
					" WHERE queue = ? AND dueAt "+when+" NOW(6) ORDER BY dueAt LIMIT 1)")
				args = append(args, string(t), string(queue))
			}
		}
	}
	b.poller.mu.Unlock()
	type due struct {
		table table
		in    int64
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	found, err := collect(ctx, b.db, func(rows *sql.Rows) (d due, err error) {
		return d, rows.Scan(&d.table, &d.in)
	}, strings.Join(parts, " UNION ALL "), args...)
	if err != nil {
		return err
	}
	for _, d := range found {
		switch {
		case d.in > 0:
			b.poller.within(time.Duration(d.in) * time.Microsecond)
		case d.table == instances:
			b.workflows.all()
		default:
			b.activities.all()
		}
	}
	return nil
}
