package storage_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/storage"
)

// TestModel runs random histories against a model in memory and compares everything after each step: states, retries,
// tokens, due times, what each call returned, the dead counts, the dead letters and the counters of /job-status.
func TestModel(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		rapid.Check(t, func(rt *rapid.T) {
			// Each history begins with nothing, also after one that failed.
			for _, table := range []string{"dlq_summary", "consumer", "consumer_removal", "job", "engineDlq"} {
				w.exec(`DELETE FROM ` + table)
			}
			m := &model{world: w, jobs: map[storage.ID]*modelJob{}}
			m.addConsumer(storage.TypePush)
			m.addConsumer(storage.TypePull)
			m.addConsumer(storage.TypeEngine)
			rt.Repeat(map[string]func(*rapid.T){
				"accept": m.accept, "claim": m.claim, "finish": m.finishSome, "reap": m.reap, "count": m.count,
				"requeue one": m.requeueOne, "requeue all": m.requeueAll, "purge one": m.purgeOne, "purge all": m.purgeAll,
				"pull": m.pull, "kill": m.kill, "revive": m.revive, "delete consumer": m.deleteConsumer,
				"resolve": m.resolve, "retry": m.retry, "expire all": m.expireAll, "post": m.post,
				"": m.compare,
			})
			for must(w.CountBatch(w.ctx, 3)).More {
			}
			if n := w.number(`SELECT COUNT(*) FROM job WHERE dlqDelta IS NOT NULL AND consumerId IN (SELECT id FROM consumer)`); n != 0 {
				rt.Errorf("%d jobs are owed to the count after a full cycle", n)
			}
			m.compare(rt)
		})
	})
}

type model struct {
	*world
	consumers []*storage.Consumer
	jobs      map[storage.ID]*modelJob
	ticks     int // orders due times
}

type modelJob struct {
	id       storage.ID
	consumer *storage.Consumer
	status   storage.Status
	priority uint32
	retries  int
	noRetry  bool
	token    uint64
	ended    bool // the lease has ended
	due      int  // of QUEUED: 0: at once; otherwise the tick of the time at which it became due; future: not yet
}

const future = 1 << 30

// exhausted tells whether a dead job may be purged; an engine's always may.
func (j *modelJob) exhausted(maxRetry int) bool {
	return j.retries >= maxRetry || j.noRetry || j.consumer.Type == storage.TypeEngine
}

func (m *model) addConsumer(kind storage.ConsumerType) {
	m.consumers = append(m.consumers, m.consumer(strings.ToLower(storage.NewToken()), kind))
}

func (m *model) anyConsumer(rt *rapid.T) *storage.Consumer {
	return rapid.SampledFrom(m.consumers).Draw(rt, "consumer")
}

// sorted are the jobs that match, in the order of their ids.
func (m *model) sorted(match func(*modelJob) bool) (out []*modelJob) {
	for _, j := range m.jobs {
		if match(j) {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *modelJob) int { return slices.Compare(a.id[:], b.id[:]) })
	return out
}

func (m *model) anyJob(rt *rapid.T) *modelJob {
	all := m.sorted(func(*modelJob) bool { return true })
	if len(all) == 0 {
		rt.Skip("no job")
	}
	return rapid.SampledFrom(all).Draw(rt, "job")
}

func (m *model) drawLease(rt *rapid.T) (lease storage.Lease, ended bool) {
	if rapid.IntRange(0, 2).Draw(rt, "lease") == 0 {
		return m.lease(-time.Second), true
	}
	return m.lease(longLease), false
}

func (m *model) accept(rt *rapid.T) {
	lease, ended := m.drawLease(rt)
	var msgs []*storage.NewMessage
	for range rapid.IntRange(1, 4).Draw(rt, "messages") {
		msg := m.message(m.consumers...)
		msg.Priority = rapid.Uint32Range(0, 2).Draw(rt, "priority")
		for i, k := range m.consumers {
			j := &modelJob{id: msg.Jobs[i].ID, consumer: k, priority: msg.Priority, status: storage.StatusQueued}
			if k.Type != storage.TypePull && rapid.Bool().Draw(rt, "leased") {
				msg.Jobs[i].Leased = true
				j.status, j.token, j.ended = storage.StatusInflight, lease.Token, ended
			}
			m.jobs[j.id] = j
		}
		msgs = append(msgs, msg)
	}
	must(0, m.Accept(m.ctx, rapid.Byte().Draw(rt, "shard"), lease, msgs))
}

func (m *model) claim(rt *rapid.T) {
	k := m.anyConsumer(rt)
	limit := rapid.IntRange(1, 6).Draw(rt, "limit")
	lease, ended := m.drawLease(rt)
	due := m.sorted(func(j *modelJob) bool {
		return j.consumer == k && j.status == storage.StatusQueued && j.due > 0 && j.due < future
	})
	ready := m.sorted(func(j *modelJob) bool { return j.consumer == k && j.status == storage.StatusQueued && j.due == 0 })
	byPriority := func(a, b *modelJob) int { return cmp.Compare(b.priority, a.priority) }
	slices.SortStableFunc(due, byPriority)
	slices.SortStableFunc(due, func(a, b *modelJob) int { return cmp.Compare(a.due, b.due) })
	slices.SortStableFunc(ready, byPriority)
	nDue := min(len(due), max((limit+1)/2, limit-len(ready)))
	want := append(due[:nDue], ready[:min(len(ready), limit-nDue)]...)
	got := must(m.Claim(m.ctx, k.Key, lease, limit))
	wantIDs := make([]storage.ID, len(want))
	for i, j := range want {
		wantIDs[i] = j.id
		j.status, j.token, j.ended, j.due = storage.StatusInflight, lease.Token, ended, 0
	}
	if !sameIDs(claimedIDs(got), wantIDs) {
		rt.Errorf("claimed %v, want %v", claimedIDs(got), wantIDs)
	}
	for _, j := range got {
		if int(j.RetryAttemptCount) != m.jobs[j.ID].retries {
			rt.Errorf("%s is claimed with %d retries, want %d", j.ID, j.RetryAttemptCount, m.jobs[j.ID].retries)
		}
	}
}

func (m *model) finishSome(rt *rapid.T) {
	later := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(rt, "delay")
	m.ticks++
	var outcomes, lost []storage.Outcome
	seen := map[storage.ID]bool{}
	for range rapid.IntRange(1, 5).Draw(rt, "outcomes") {
		j := m.anyJob(rt)
		if seen[j.id] {
			continue
		}
		seen[j.id] = true
		o := outcome(j.id, j.token, j.consumer, rapid.SampledFrom([]storage.Verdict{storage.Delivered, storage.RetryLater, storage.Die, storage.HandBack}).Draw(rt, "verdict"))
		if o.Verdict == storage.RetryLater || o.Verdict == storage.HandBack {
			o.Delay = later
		}
		if rapid.Bool().Draw(rt, "subject") {
			o.Subject = &storage.Subject{InstanceID: "hmac-publisher", CorrelationID: rapid.SampledFrom([]string{"", "c1", "ç2"}).Draw(rt, "correlation")}
		}
		if rapid.IntRange(0, 4).Draw(rt, "stale") == 0 {
			o.Token += 1 << 40
		}
		outcomes = append(outcomes, o)
		if j.status != storage.StatusInflight || o.Token != j.token {
			lost = append(lost, o)
			continue
		}
		j.due = 0
		switch o.Verdict {
		case storage.Delivered:
			j.status = storage.StatusDelivered
		case storage.Die:
			j.status = storage.StatusDead
		case storage.HandBack:
			j.status = storage.StatusQueued
			if later > 0 {
				j.due = future
			}
		case storage.RetryLater:
			j.status, j.due = storage.StatusQueued, m.ticks
			if j.retries++; later > 0 {
				j.due = future
			}
		}
	}
	got := must(m.Finish(m.ctx, rapid.Byte().Draw(rt, "shard"), outcomes))
	if !sameIDs(jobIDs(got), jobIDs(lost)) {
		rt.Errorf("lost %v, want %v", jobIDs(got), jobIDs(lost))
	}
}

func (m *model) reap(rt *rapid.T) {
	k := m.anyConsumer(rt)
	maxRetry := rapid.IntRange(0, 2).Draw(rt, "max retry")
	var want storage.Reaped
	for _, j := range m.jobs {
		if j.consumer != k || j.status != storage.StatusInflight || !j.ended {
			continue
		}
		switch {
		case k.Type != storage.TypePush:
			j.status = storage.StatusQueued
			want.Requeued++
		case j.retries >= maxRetry:
			j.status = storage.StatusDead
			want.Dead++
		default:
			j.status = storage.StatusQueued
			j.retries++
			want.Requeued++
		}
	}
	if got := must(m.ReapLeases(m.ctx, k.Key, storage.LeasePolicy{MaxRetry: maxRetry, Type: k.Type, Limit: 1000})); got != want {
		rt.Errorf("reaped %+v, want %+v", got, want)
	}
}

func (m *model) count(rt *rapid.T) {
	limit := rapid.IntRange(1, 8).Draw(rt, "limit")
	owed := m.number(`SELECT COUNT(*) FROM job WHERE dlqDelta IS NOT NULL`)
	f := must(m.CountBatch(m.ctx, limit))
	if want := min(int(owed), limit); f.Read != want || f.Counted+f.Undone != want || f.More != (want == limit) {
		rt.Errorf("%+v of %d with limit %d", f, owed, limit)
	}
}

func (m *model) back(j *modelJob) {
	j.status, j.retries, j.noRetry, j.due = storage.StatusQueued, 0, false, 0
}

func (m *model) requeueOne(rt *rapid.T) {
	j := m.anyJob(rt)
	err := m.RequeueOne(m.ctx, j.consumer.Key, j.id, "consumer")
	if j.status != storage.StatusDead {
		if !errors.Is(err, storage.ErrNotDead) {
			rt.Errorf("requeue of a job that is %v: %v", j.status, err)
		}
		return
	}
	must(0, err)
	m.back(j)
}

func (m *model) dead(k *storage.Consumer) []*modelJob {
	return m.sorted(func(j *modelJob) bool { return j.consumer == k && j.status == storage.StatusDead })
}

func (m *model) requeueAll(rt *rapid.T) {
	k := m.anyConsumer(rt)
	dead := m.dead(k)
	for _, j := range dead {
		m.back(j)
	}
	if n := must(m.RequeueAll(m.ctx, k.Key, "consumer")); n != int64(len(dead)) {
		rt.Errorf("requeued %d, want %d", n, len(dead))
	}
}

func (m *model) purgeOne(rt *rapid.T) {
	j := m.anyJob(rt)
	maxRetry := rapid.IntRange(0, 2).Draw(rt, "max retry")
	err := m.PurgeOne(m.ctx, j.consumer.Key, j.id, maxRetry, "consumer")
	if j.status != storage.StatusDead || !j.exhausted(maxRetry) {
		if !errors.Is(err, storage.ErrNotFound) {
			rt.Errorf("purge of %+v with at most %d retries: %v", j, maxRetry, err)
		}
		return
	}
	must(0, err)
	delete(m.jobs, j.id)
}

func (m *model) purgeAll(rt *rapid.T) {
	k := m.anyConsumer(rt)
	maxRetry := rapid.IntRange(0, 2).Draw(rt, "max retry")
	want := int64(0)
	for _, j := range m.dead(k) {
		if j.exhausted(maxRetry) {
			delete(m.jobs, j.id)
			want++
		}
	}
	if n := must(m.PurgeAll(m.ctx, k.Key, maxRetry, "consumer")); n != want {
		rt.Errorf("purged %d, want %d", n, want)
	}
}

func (m *model) pull(rt *rapid.T) {
	j := m.anyJob(rt)
	if j.consumer.Type != storage.TypePull {
		rt.Skip("a push consumer")
	}
	next := rapid.SampledFrom(statuses).Draw(rt, "next")
	err := m.SetPullState(m.ctx, storage.PullState{Job: j.id, Consumer: j.consumer, Next: next, Lease: time.Hour})
	switch {
	case next == j.status:
		must(0, err)
	case next == storage.StatusInflight && (j.status == storage.StatusQueued || j.status == storage.StatusDead):
		must(0, err)
		j.status, j.token, j.ended, j.noRetry, j.due = next, 0, false, false, 0
	case j.status == storage.StatusInflight && (next == storage.StatusDelivered || next == storage.StatusDead):
		must(0, err)
		j.status, j.noRetry = next, j.noRetry || next == storage.StatusDead
	case !errors.Is(err, storage.ErrBadTransition):
		rt.Errorf("%v to %v: %v", j.status, next, err)
	}
}

// kill is a writer that knows nothing of counts.
func (m *model) kill(rt *rapid.T) {
	if j := m.anyJob(rt); j.status == storage.StatusQueued || j.status == storage.StatusInflight {
		m.exec(`UPDATE job SET status = 1004 WHERE id = ?`, j.id)
		j.status = storage.StatusDead
		m.repair(rt, j.consumer)
	}
}

// repair mends the dead letters of a consumer whose jobs somebody wrote to; the count never needs it.
func (m *model) repair(rt *rapid.T, k *storage.Consumer) {
	if drift := must(m.RepairDeadCount(m.ctx, k.Key)); drift != 0 {
		rt.Errorf("a drift of %d was repaired", drift)
	}
}

// letterOf is the key of the dead letter that a job has, or had last.
func (m *model) letterOf(rt *rapid.T, j *modelJob) string {
	f := storage.DLQFilter{Engine: j.consumer.Engine()}
	if f.Engine == storage.EngineDelivery {
		f.InstanceID = j.consumer.ID
	}
	letters, more := []storage.DeadLetter{}, false
	for _, d := range must2(m.ListDeadLetters(m.ctx, f, nil, 1000))(&more) {
		if d.Job == j.id {
			letters = append(letters, d)
		}
	}
	if more {
		rt.Errorf("more than 1000 dead letters")
	}
	if len(letters) == 0 {
		rt.Skip("it never died")
	}
	return letters[0].RowKey
}

func (m *model) resolve(rt *rapid.T) {
	j := m.anyJob(rt)
	key := m.letterOf(rt, j)
	to := rapid.SampledFrom([]storage.DLQStatus{storage.DLQResolved, storage.DLQExpired}).Draw(rt, "to")
	d, err := m.ResolveDeadLetter(m.ctx, j.consumer.Engine(), key, storage.Resolution{Status: to, Notes: "n", By: "me"})
	if j.status != storage.StatusDead {
		if !errors.Is(err, storage.ErrBadResolution) {
			rt.Errorf("resolving the dead letter of a job that is %v: %v", j.status, err)
		}
		return
	}
	must(0, err)
	j.status = storage.StatusShelved
	if d.Status != to || d.ResolvedBy != "me" || d.ResolutionNotes != "n" || d.ResolvedAt == nil {
		rt.Errorf("resolved: %+v", d)
	}
}

func (m *model) retry(rt *rapid.T) {
	j := m.anyJob(rt)
	key := m.letterOf(rt, j)
	before := must(m.DeadLetter(m.ctx, j.consumer.Engine(), key))
	r, err := m.RetryDeadLetter(m.ctx, j.consumer.Engine(), key, "me")
	retriable := j.status == storage.StatusDead || j.status == storage.StatusShelved
	switch {
	case before.QueueMessageID != "":
		if err != nil || r.Again || r.Job != j.id || r.QueueMessageID != before.QueueMessageID {
			rt.Errorf("retried again: %+v, %v; it was %+v", r, err, before)
		}
	case !retriable:
		if !errors.Is(err, storage.ErrJobGone) {
			rt.Errorf("retry of a job that is %v: %v", j.status, err)
		}
	case err != nil || !r.Again || r.Job != j.id || r.ConsumerKey != j.consumer.Key || len(r.QueueMessageID) != 20:
		rt.Errorf("retry of a job that is %v: %+v, %v", j.status, r, err)
	default:
		m.back(j)
	}
}

// post has an engine's program elsewhere report a dead letter of its own: no job of ours has to do with it.
func (m *model) post(*rapid.T) {
	for _, k := range m.consumers {
		if k.Type == storage.TypeEngine {
			must(m.AddDeadLetter(m.ctx, letter(k.ID, "elsewhere", anInstant)))
		}
	}
}

func (m *model) expireAll(rt *rapid.T) {
	want := m.number(`SELECT COUNT(*) FROM engineDlq WHERE Status = 'Pending'`) // some may be of a consumer that was deleted
	if n := must(m.ExpireDeadLetters(m.ctx, -time.Hour, "", "me")); n != want {
		rt.Errorf("expired %d, want %d", n, want)
	}
	for _, j := range m.sorted(func(j *modelJob) bool { return j.status == storage.StatusDead }) {
		j.status = storage.StatusShelved
	}
}

// must2 is must for a list that tells whether it goes on.
func must2[T any](v T, more bool, err error) func(*bool) T {
	if err != nil {
		panic(err)
	}
	return func(m *bool) T { *m = more; return v }
}

// revive is another one.
func (m *model) revive(rt *rapid.T) {
	if j := m.anyJob(rt); j.status == storage.StatusDead {
		m.exec(`UPDATE job SET status = 1001, dueAt = NULL WHERE id = ?`, j.id)
		j.status, j.due = storage.StatusQueued, 0
		m.repair(rt, j.consumer)
	}
}

func (m *model) deleteConsumer(rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "really") > 0 {
		return
	}
	i := rapid.IntRange(0, len(m.consumers)-1).Draw(rt, "consumer")
	k := m.consumers[i]
	must(0, m.DeleteConsumer(m.ctx, k.Key, k.ChangedAt))
	maps.DeleteFunc(m.jobs, func(_ storage.ID, j *modelJob) bool { return j.consumer == k })
	if rapid.Bool().Draw(rt, "remove") {
		must(m.RemoveJobs2())
	}
	m.consumers = slices.Delete(m.consumers, i, i+1)
	m.addConsumer(k.Type)
}

// compare holds the database against the model.
func (m *model) compare(rt *rapid.T) {
	wantStatus := map[string]int64{}
	wantDead := map[uint32]int64{}
	for _, k := range m.consumers {
		wantDead[k.Key] = 0
	}
	stored := m.stored()
	for id, j := range m.jobs {
		want := *j
		if want.ended = false; want.status != storage.StatusInflight {
			want.token = 0
		}
		switch {
		case want.status == storage.StatusInflight, want.status == storage.StatusQueued && want.due > 0:
			want.due = 1
		default:
			want.due = 0
		}
		want.consumer = nil
		if got := stored[id]; got != want {
			rt.Errorf("%s is %+v, want %+v", id, got, want)
		}
		wantStatus[fmt.Sprint(j.consumer.Key, j.status)]++
		if j.status == storage.StatusDead {
			wantDead[j.consumer.Key]++
		}
	}
	gotStatus, gotDead := map[string]int64{}, map[uint32]int64{}
	for _, c := range must(m.JobStatus(m.ctx)) {
		gotStatus[fmt.Sprint(c.ConsumerKey, c.Status)] = c.Count
	}
	for _, c := range must(m.DeadCounts(m.ctx)).Consumers {
		gotDead[c.ConsumerKey] = c.Dead
	}
	if !maps.Equal(gotStatus, wantStatus) {
		rt.Errorf("job status %v, want %v", gotStatus, wantStatus)
	}
	if !maps.Equal(gotDead, wantDead) {
		rt.Errorf("dead counts %v, want %v", gotDead, wantDead)
	}
	if wrong := must(wrongCounts(m.ctx, m.DB())) + must(wrongTallies(m.ctx, m.DB())) + must(wrongRecords(m.ctx, m.DB())); wrong != "" {
		rt.Error(wrong)
	}
}

// stored are the jobs as the database has them: without a consumer, with a token while INFLIGHT, and with a due time of
// 1 where QUEUED or INFLIGHT and due at some time.
func (m *model) stored() map[storage.ID]modelJob {
	out := map[storage.ID]modelJob{}
	rows := must(m.DB().QueryContext( //nolint:rowserrcheck // it is, by must
		m.ctx, `SELECT id, status, -precedence, retryAttemptCount, noRetry, IF(status = 1002, leaseToken, 0),
		status IN (1001, 1002) AND dueAt IS NOT NULL FROM job`))
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var j modelJob
		must(0, rows.Scan(&j.id, &j.status, &j.priority, &j.retries, &j.noRetry, &j.token, &j.due))
		out[j.id] = j
	}
	must(0, rows.Err())
	return out
}
