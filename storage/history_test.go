package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/storage"
)

// historyTime is how long the actors of a history run, all histories of a test together.
const historyTime = 4 * time.Second

// TestHistories lets many actors loose on the same jobs at once, each with its own connection pool as another instance
// has: those that accept, claim, finish (some late, some twice), reap, requeue, purge, pull, count, delete consumers,
// resolve, expire and retry dead letters, and some who write to the table by hand and know nothing of counts. A checker
// compares counts and rows in one statement all the while; at rest everything must add up. I1 to I5 and I9 of the
// design, and of I8 that no job is lost.
func TestHistories(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		h := newHistory(w, storage.TypePush)
		h.run(actor{"killer", h.killer})
		h.atRest()
		for _, k := range []*storage.Consumer{h.push, h.pull, h.doomed} {
			if drift := must(h.RepairDeadCount(h.ctx, k.Key)); drift != 0 {
				t.Errorf("%s: a drift of %d was repaired", k.ID, drift)
			}
		}
		h.recordsRight()
	})
}

// TestRecordsOfHistories is TestHistories without those who write by hand: in every snapshot each dead job has its open
// dead letter. I10 of the design.
func TestRecordsOfHistories(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, w *world, kind storage.ConsumerType) {
		h := newHistory(w, kind)
		h.checks = append(h.checks, wrongRecords)
		h.run()
		h.atRest()
		h.recordsRight()
		if h.resolved.Load() == 0 || h.retried.Load() == 0 {
			t.Errorf("%d dead letters resolved or expired, %d retried: too little happened", h.resolved.Load(), h.retried.Load())
		}
	}
	eachWay(t, func(t *testing.T, w *world) { test(t, w, storage.TypePush) })
	t.Run("engine", func(t *testing.T) { t.Parallel(); test(t, newWorld(t, nil), storage.TypeEngine) })
}

type history struct {
	*world
	push, pull *storage.Consumer

	accepted, purged atomic.Int64 // jobs of push and pull
	snapshots        atomic.Int64
	resolved         atomic.Int64 // dead letters resolved or expired
	retried          atomic.Int64
	checks           []func(context.Context, *sql.DB) (string, error) // of every snapshot

	mu   sync.Mutex
	jobs []storage.Outcome // attempts that were begun, to be ended by whoever comes
	won  map[storage.Outcome]int

	doomed *storage.Consumer // the next to be deleted
}

func (h *history) theDoomed() *storage.Consumer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.doomed
}

// newHistory has the attempts made of a consumer of that type.
func newHistory(w *world, kind storage.ConsumerType) *history {
	h := &history{world: w, won: map[storage.Outcome]int{}, checks: []func(context.Context, *sql.DB) (string, error){wrongCounts}}
	h.push, h.pull, h.doomed = w.consumer("push", kind), w.consumer("pull", storage.TypePull), w.consumer("doomed", kind)
	return h
}

type actor struct {
	name string
	act  func(context.Context, *storage.Store, *rand.Rand) error
}

// run starts every actor and the checker, and waits for them.
func (h *history) run(more ...actor) {
	ctx, stop := context.WithTimeout(h.ctx, historyTime)
	defer stop()
	actors := append([]actor{
		{"acceptor", h.acceptor}, {"claimer", h.claimer}, {"other claimer", h.claimer}, {"finisher", h.finisher}, {"late finisher", h.finisher},
		{"reaper", h.reaper}, {"requeuer", h.requeuer}, {"purger", h.purger}, {"puller", h.puller},
		{"counter", h.counter}, {"other counter", h.counter}, {"deleter", h.deleter}, {"resolver", h.resolver}, {"other resolver", h.resolver},
	}, more...)
	var wg sync.WaitGroup
	for i, a := range actors {
		s, r := h.another(), rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				// An action that was begun is ended, so that what it reports is known.
				if err := a.act(h.ctx, s, r); err != nil && !isDeadlock(err) {
					h.t.Errorf("%s: %v", a.name, err)
					stop()
				}
			}
		})
	}
	checker := h.another()
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, check := range h.checks {
				wrong, err := check(h.ctx, checker.DB())
				if err != nil || wrong != "" {
					h.t.Errorf("in a snapshot: %s %v", wrong, err)
					stop()
				}
			}
			h.snapshots.Add(1)
		}
	})
	wg.Wait()
}

// isDeadlock tells the deadlocks of those who write by hand and do not try again.
func isDeadlock(err error) bool {
	me, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (me.Number == 1213 || me.Number == 1205)
}

func (h *history) atRest() {
	t := h.t
	if wrong := must(wrongCounts(h.ctx, h.DB())); wrong != "" {
		t.Errorf("before the last cycle: %s", wrong)
	}
	shown := map[uint32]int64{}
	for _, c := range must(h.DeadCounts(h.ctx)).Consumers {
		shown[c.ConsumerKey] = c.Dead
	}
	h.countAll()
	counts := must(h.DeadCounts(h.ctx))
	if n := h.number(`SELECT COUNT(*) FROM job WHERE dlqDelta IS NOT NULL`); n != 0 || counts.Uncounted != 0 {
		t.Errorf("%d jobs are owed to the count after a full cycle (%d are said to be)", n, counts.Uncounted)
	}
	for _, c := range counts.Consumers {
		if c.Dead != shown[c.ConsumerKey] {
			t.Errorf("%s: %d dead were shown before the last cycle, %d after it", c.ConsumerID, shown[c.ConsumerKey], c.Dead)
		}
		if n := h.number(`SELECT dead_count FROM dlq_summary WHERE consumerId = ?`, c.ConsumerKey); n != c.Dead {
			t.Errorf("%s: dead_count %d, shown %d", c.ConsumerID, n, c.Dead)
		}
	}
	h.countsRight()
	byStatus := must(h.JobStatus(h.ctx))
	for _, c := range byStatus {
		if n := h.number(`SELECT COUNT(*) FROM job WHERE consumerId = ? AND status = ?`, c.ConsumerKey, c.Status); n != c.Count {
			t.Errorf("%s: %d jobs are %v, shown %d", c.ConsumerID, n, c.Status, c.Count)
		}
	}
	if n := h.number(`SELECT COUNT(*) FROM job WHERE consumerId IN (?, ?)`, h.push.Key, h.pull.Key); n != h.accepted.Load()-h.purged.Load() {
		t.Errorf("%d jobs accepted, %d purged, %d are there", h.accepted.Load(), h.purged.Load(), n)
	}
	for o, n := range h.won {
		if n > 1 {
			t.Errorf("%d finishers of the lease %d of job %s were told that they won", n, o.Token, o.JobID)
		}
	}
	if h.snapshots.Load() < 5 || len(h.won) == 0 || h.purged.Load() == 0 {
		t.Errorf("%d snapshots, %d attempts ended, %d purged: too little happened", h.snapshots.Load(), len(h.won), h.purged.Load())
	}
	t.Logf("%d jobs, %d attempts ended, %d purged, %d snapshots; %v", h.accepted.Load(), len(h.won), h.purged.Load(), h.snapshots.Load(), byStatus)
}

// recordsRight fails the test unless the open dead letters are those of the dead jobs.
func (h *history) recordsRight() {
	h.t.Helper()
	if wrong := must(wrongRecords(h.ctx, h.DB())); wrong != "" {
		h.t.Error(wrong)
	}
	for _, k := range []*storage.Consumer{h.push, h.pull, h.doomed} {
		if missing, stray, err := h.DeadLetterDrift(h.ctx, k.Key); err != nil || missing != 0 || stray != 0 {
			h.t.Errorf("%s: %d dead letters are missing, %d are stray, %v", k.ID, missing, stray, err)
		}
	}
}

// resolver resolves, expires and retries what is dead or was shelved.
func (h *history) resolver(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	if r.IntN(20) == 0 {
		n, err := s.ExpireDeadLetters(ctx, time.Duration(r.IntN(2000))*time.Millisecond, "", "resolver")
		h.resolved.Add(n)
		return err
	}
	f := storage.DLQFilter{Engine: []string{storage.EngineDelivery, h.push.Engine()}[r.IntN(2)]}
	if f.Engine == storage.EngineDelivery {
		f.InstanceID = []string{"", "push", "pull"}[r.IntN(3)]
	}
	f.Status = []storage.DLQStatus{"", storage.DLQPending, storage.DLQPending, storage.DLQResolved, storage.DLQExpired}[r.IntN(5)]
	letters, _, err := s.ListDeadLetters(ctx, f, nil, 20)
	if err != nil || len(letters) == 0 {
		return err
	}
	d := letters[r.IntN(len(letters))]
	if r.IntN(2) == 0 {
		again, err := s.RetryDeadLetter(ctx, d.Engine, d.RowKey, "resolver")
		if again.Again {
			h.retried.Add(1)
		}
		if errors.Is(err, storage.ErrJobGone) {
			return nil
		}
		return err
	}
	to := []storage.DLQStatus{storage.DLQResolved, storage.DLQExpired}[r.IntN(2)]
	_, err = s.ResolveDeadLetter(ctx, d.Engine, d.RowKey, storage.Resolution{Status: to, Notes: "seen", By: "resolver"})
	if errors.Is(err, storage.ErrBadResolution) {
		return nil
	}
	if err == nil {
		h.resolved.Add(1)
	}
	return err
}

// drawLease has a third of the leases run out at once.
func (h *history) drawLease(r *rand.Rand) storage.Lease {
	if r.IntN(3) == 0 {
		return h.lease(-time.Second)
	}
	return h.lease(longLease)
}

func (h *history) began(id storage.ID, token uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs = append(h.jobs, storage.Outcome{JobID: id, Token: token, ConsumerKey: h.push.Key})
}

func (h *history) acceptor(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	lease := h.drawLease(r)
	msgs := make([]*storage.NewMessage, 1+r.IntN(10))
	for i := range msgs {
		msgs[i] = h.message(h.push, h.pull, h.theDoomed())
		msgs[i].Jobs[0].Leased = r.IntN(2) == 0
	}
	if err := s.Accept(ctx, uint8(r.IntN(16)), lease, msgs); err != nil {
		return err
	}
	h.accepted.Add(2 * int64(len(msgs)))
	for _, m := range msgs {
		if m.Jobs[0].Leased {
			h.began(m.Jobs[0].ID, lease.Token)
		}
	}
	return nil
}

func (h *history) claimer(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	jobs, err := s.Claim(ctx, h.push.Key, h.drawLease(r), 1+r.IntN(20))
	for _, j := range jobs {
		h.began(j.ID, j.Token)
	}
	return err
}

// finisher ends attempts with random verdicts; a third of them stay where they are, for another one to end again.
func (h *history) finisher(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	h.mu.Lock()
	r.Shuffle(min(len(h.jobs), 200), func(i, k int) { h.jobs[i], h.jobs[k] = h.jobs[k], h.jobs[i] })
	n := min(len(h.jobs), r.IntN(15))
	outcomes := slices.Clone(h.jobs[:n])
	if r.IntN(3) > 0 {
		h.jobs = slices.Delete(h.jobs, 0, n)
	}
	h.mu.Unlock()
	for i, o := range outcomes {
		verdict := []storage.Verdict{storage.Delivered, storage.RetryLater, storage.Die, storage.Die, storage.HandBack}[r.IntN(5)]
		outcomes[i] = outcome(o.JobID, o.Token, h.push, verdict)
		if outcomes[i].Delay = 0; r.IntN(2) == 0 {
			outcomes[i].Error = fmt.Sprint("error ", i) // a statement of its own
			outcomes[i].Subject = &storage.Subject{InstanceID: fmt.Sprint("tenant-", i)}
		}
	}
	lost, err := s.Finish(ctx, uint8(r.IntN(16)), outcomes)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range outcomes {
		if !slices.Contains(lost, o) {
			h.won[storage.Outcome{JobID: o.JobID, Token: o.Token}]++
		}
	}
	return nil
}

func (h *history) reaper(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	k := []*storage.Consumer{h.push, h.pull}[r.IntN(2)]
	_, err := s.ReapLeases(ctx, k.Key, storage.LeasePolicy{MaxRetry: r.IntN(3), Type: k.Type, Limit: 1 + r.IntN(20)})
	return err
}

// oneOf is some job of the table, of push or pull.
func (h *history) oneOf(ctx context.Context, s *storage.Store, k *storage.Consumer, status int) (id storage.ID, ok bool, err error) {
	err = s.DB().QueryRowContext(ctx, `SELECT id FROM job WHERE consumerId = ? AND status = ? ORDER BY statusChangedAt DESC LIMIT 1`, k.Key, status).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return id, false, nil
	}
	return id, err == nil, err
}

func (h *history) requeuer(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	k := []*storage.Consumer{h.push, h.pull}[r.IntN(2)]
	if r.IntN(8) == 0 {
		_, err := s.RequeueAll(ctx, k.Key, "consumer")
		return err
	}
	id, ok, err := h.oneOf(ctx, s, k, 1004)
	if !ok {
		return err
	}
	err = s.RequeueOne(ctx, k.Key, id, "consumer")
	if errors.Is(err, storage.ErrNotDead) || errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	return err
}

func (h *history) purger(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	k := []*storage.Consumer{h.push, h.pull}[r.IntN(2)]
	if r.IntN(8) == 0 {
		n, err := s.PurgeAll(ctx, k.Key, r.IntN(3), "consumer")
		h.purged.Add(n)
		return err
	}
	id, ok, err := h.oneOf(ctx, s, k, 1004)
	if !ok {
		return err
	}
	err = s.PurgeOne(ctx, k.Key, id, r.IntN(3), "consumer")
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	if err == nil {
		h.purged.Add(1)
	}
	return err
}

func (h *history) puller(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	from := []int{1001, 1002, 1002, 1004}[r.IntN(4)]
	id, ok, err := h.oneOf(ctx, s, h.pull, from)
	if !ok {
		return err
	}
	lease := []time.Duration{-time.Second, longLease}[r.IntN(2)]
	err = s.SetPullState(ctx, storage.PullState{Job: id, Consumer: h.pull, Next: statuses[r.IntN(4)], Lease: lease})
	if errors.Is(err, storage.ErrBadTransition) || errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	return err
}

// killer writes by hand: it kills and brings back, and counts nothing.
func (h *history) killer(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	statement := []string{
		`UPDATE job SET status = 1004 WHERE consumerId = ? AND status IN (1001, 1002) LIMIT 3`,
		`UPDATE job SET status = 1004, statusChangedAt = NOW(6), dueAt = NULL WHERE consumerId = ? AND status = 1002 LIMIT 5`,
		`UPDATE job SET status = 1001, dueAt = NULL WHERE consumerId = ? AND status = 1004 LIMIT 2`,
	}[r.IntN(3)]
	_, err := s.DB().ExecContext(ctx, statement, []*storage.Consumer{h.push, h.pull, h.theDoomed()}[r.IntN(3)].Key)
	return err
}

func (h *history) counter(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	if r.IntN(20) == 0 {
		return s.StampCycle(ctx)
	}
	_, err := s.CountBatch(ctx, 1+r.IntN(40))
	return err
}

// deleter deletes a consumer while everybody works on its jobs, and makes another one.
func (h *history) deleter(ctx context.Context, s *storage.Store, r *rand.Rand) error {
	if r.IntN(4) > 0 {
		_, _, err := s.RemoveJobs(ctx, 1+r.IntN(50))
		return err
	}
	doomed := h.theDoomed()
	if err := s.DeleteConsumer(ctx, doomed.Key, doomed.ChangedAt); err != nil {
		return err
	}
	next, err := s.PutConsumer(ctx, storage.PutConsumer{ChannelKey: h.channel.Key, Type: storage.TypePush, CallbackURL: "http://x/",
		PutStakeholder: storage.PutStakeholder{ID: storage.NewToken(), Name: "doomed", Token: "t"}})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doomed = next
	return nil
}
