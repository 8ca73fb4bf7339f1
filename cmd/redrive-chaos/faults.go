//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// tormentor breaks instances and the database, each in its own goroutine, and mends what it broke.
// ctx of its methods is the whole run's; harm ends with the traffic, after which they mend and return.
type tormentor struct {
	rec *recorder
	db  database
	// One instance at a time is broken as a rule, so that there is traffic; now and then a fault does not wait for its turn.
	turn sync.Mutex
	// noDatabase is above 0 while the database is away and a little after: an instance may fail to start meanwhile.
	noDatabase atomic.Int32
	duration   time.Duration
}

// instance breaks and mends i until harm ends. Its first fault depends on its number, so that even the shortest run has
// a kill and a stop; later ones come in random order.
func (t *tormentor) instance(ctx, harm context.Context, i *instance, rng *rand.Rand) error {
	kinds := []string{faultKill, faultStop, faultTerm}
	kinds = append(kinds[(i.n-1)%len(kinds):], kinds[:(i.n-1)%len(kinds)]...)
	for n := 0; ; n++ {
		if n > 0 && n%len(kinds) == 0 {
			rng.Shuffle(len(kinds), func(a, b int) { kinds[a], kinds[b] = kinds[b], kinds[a] })
		}
		if !t.quiet(ctx, harm, i, between(rng, 800*time.Millisecond, 3*time.Second)) {
			return t.revive(ctx, i)
		}
		wait := n < len(kinds) || rng.IntN(6) > 0
		if err := t.turned(wait, func() error { return t.breakInstance(ctx, harm, i, kinds[n%len(kinds)], rng) }); err != nil {
			return err
		}
	}
}

func (t *tormentor) turned(wait bool, f func() error) error {
	if wait {
		t.turn.Lock()
		defer t.turn.Unlock()
	}
	return f()
}

// quiet lets an instance live for d. It returns false when harm ended. One that ends by itself is an incident and
// is started again.
func (t *tormentor) quiet(ctx, harm context.Context, i *instance, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-harm.Done():
		return false
	case <-timer.C:
		return true
	case <-i.process().done:
		t.rec.incident("instance %d ended by itself: %v; its last words: %s", i.n, i.process().err, i.lastWords())
		return t.revive(ctx, i) == nil
	}
}

// revive sees to it that the instance runs and is ready.
func (t *tormentor) revive(ctx context.Context, i *instance) error {
	if p := i.process(); !p.gone() {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		if err := i.awaitReady(ctx, p); err == nil || !p.gone() {
			return err
		}
		t.rec.incident("instance %d ended by itself: %v; its last words: %s", i.n, p.err, i.lastWords())
	}
	return i.bringUp(ctx, t.mayEnd)
}

func (t *tormentor) mayEnd() bool { return t.noDatabase.Load() > 0 }

func (t *tormentor) breakInstance(ctx, harm context.Context, i *instance, kind string, rng *rand.Rand) error {
	if harm.Err() != nil || i.process().gone() {
		return nil //nolint:nilerr // the harm is over: nothing is to be broken, and nothing went wrong
	}
	f := fault{Kind: kind, Target: strconv.Itoa(i.n), Start: t.rec.now()}
	away := between(rng, 300*time.Millisecond, 2500*time.Millisecond)
	switch kind {
	case faultKill:
		i.kill()
	case faultTerm:
		i.terminate()
	case faultStop:
		// Longer than a lease, so that it wakes up with attempts under way that are no longer its own.
		away = leaseTime + between(rng, 500*time.Millisecond, 2500*time.Millisecond)
		i.signal(syscall.SIGSTOP)
	}
	f.Down = t.rec.now()
	hold(harm, away)
	f.Up = t.rec.now()
	var err error
	if kind == faultStop {
		i.signal(syscall.SIGCONT)
	} else {
		err = i.bringUp(ctx, t.mayEnd)
	}
	f.End = t.rec.now()
	t.rec.fault(f)
	return err
}

// database kills the database and starts it again until harm ends. The first time comes in the middle of a short run.
func (t *tormentor) database(ctx, harm context.Context, rng *rand.Rand) error {
	first := min(t.duration, 20*time.Second)
	wait := between(rng, first*3/10, first*6/10)
	for hold(harm, wait) {
		f := fault{Kind: faultDatabase, Start: t.rec.now()}
		t.noDatabase.Add(1)
		if err := t.db.Kill(); err != nil {
			return fmt.Errorf("killing the database: %w", err)
		}
		f.Down = t.rec.now()
		hold(harm, between(rng, 1500*time.Millisecond, 4*time.Second))
		f.Up = t.rec.now()
		if err := t.db.Restart(ctx); err != nil {
			return fmt.Errorf("bringing the database back: %w", err)
		}
		f.End = t.rec.now()
		t.rec.fault(f)
		// An instance that was starting may find out a little later that the database had been away.
		hold(ctx, 2*time.Second)
		t.noDatabase.Add(-1)
		wait = between(rng, 6*time.Second, 14*time.Second)
	}
	return nil
}
