package workflowdb

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/cschleiden/go-workflows/workflow"
	"github.com/rs/xid"

	"github.com/redrive-mq/redrive/storage"
)

const (
	// candidates is how many due rows a claim reads: others may be taken by the time it tries them.
	candidates = 8
	// statementTimeout bounds what runs apart from its caller's context.
	statementTimeout = 5 * time.Second
)

// claim takes the lease of a row of the queues that is due, the longest waiting first. Nil: there is none. It runs to
// its end even if ctx ends meanwhile: a statement that is broken off may have taken a lease that nobody knows of.
func (b *Backend) claim(ctx context.Context, t table, queues []workflow.Queue, duration time.Duration) (*lease, error) {
	for {
		ids, err := b.due(ctx, t, queues)
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		full := len(ids) >= candidates
		for len(ids) > 0 {
			l := lease{table: t, id: ids[0], token: xid.New()}
			n, err := b.changeLease(ctx, "UPDATE "+string(t)+` SET leaseToken = ?, dueAt = NOW(6) + INTERVAL ? MICROSECOND
				WHERE id = ? AND dueAt <= NOW(6)`, l.token[:], micros(duration), l.id)
			if err != nil {
				b.unsettle(l, err)
				return nil, err
			}
			if n == 1 {
				b.hold(l)
				return &l, nil
			}
			// Somebody was faster, and will be with the next one too: go on elsewhere in the list.
			ids = ids[1:]
			rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		}
		if !full {
			return nil, nil // whoever took them, took all there was
		}
	}
}

func (b *Backend) due(ctx context.Context, t table, queues []workflow.Queue) ([]uint64, error) {
	limit := strconv.Itoa(candidates)
	parts := make([]string, len(queues))
	args := make([]any, len(queues))
	for i, queue := range queues {
		parts[i] = "(SELECT id, dueAt FROM " + string(t) + " WHERE queue = ? AND dueAt <= NOW(6) ORDER BY dueAt LIMIT " + limit + ")"
		args[i] = string(queue)
	}
	return collect(ctx, b.db, func(rows *sql.Rows) (id uint64, err error) {
		var at time.Time
		return id, rows.Scan(&id, &at)
	}, strings.Join(parts, " UNION ALL ")+" ORDER BY 2 LIMIT "+limit, args...)
}

// changeLease runs one statement that is a transaction of its own.
func (b *Backend) changeLease(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = storage.Retry(ctx, func() error {
		n, err = affected(ctx, b.db, query, args...)
		return err
	})
	return n, err
}

// extend moves the end of a lease to duration from now. One that ended can be extended as long as nobody took it.
func (b *Backend) extend(ctx context.Context, l lease, duration time.Duration) error {
	n, err := b.changeLease(ctx, "UPDATE "+string(l.table)+` SET dueAt = NOW(6) + INTERVAL ? MICROSECOND
		WHERE id = ? AND leaseToken = ?`, micros(duration), l.id, l.token[:])
	if err == nil && n == 0 {
		b.forget(l)
		return ErrLeaseLost
	}
	return err
}

// release gives a task back, to be taken up at once by whoever is there. A lease that was lost is no error.
func (b *Backend) release(ctx context.Context, l lease) error {
	b.forget(l)
	_, err := b.changeLease(ctx, "UPDATE "+string(l.table)+" SET leaseToken = NULL, dueAt = NOW(6) WHERE id = ? AND leaseToken = ?",
		l.id, l.token[:])
	if err == nil {
		b.wakeFor(l.table)
	}
	return err
}

// unsettle remembers a lease that was taken, or may have been, without anybody to do the work, because the database was
// away or too slow.
func (b *Backend) unsettle(l lease, why error) {
	if !storage.IsUnavailable(why) {
		return
	}
	b.heldMu.Lock()
	defer b.heldMu.Unlock()
	delete(b.held, l)
	b.unsettled = append(b.unsettled, l)
}

// giveBack gives such leases back, before anything else is claimed.
func (b *Backend) giveBack(ctx context.Context) error {
	b.heldMu.Lock()
	leases := b.unsettled
	b.unsettled = nil
	b.heldMu.Unlock()
	for i, l := range leases {
		if err := b.release(ctx, l); err != nil {
			b.heldMu.Lock()
			b.unsettled = append(b.unsettled, leases[i:]...)
			b.heldMu.Unlock()
			return err
		}
	}
	return nil
}

func (b *Backend) wakeFor(t table) {
	if t == instances {
		b.workflows.all()
	} else {
		b.activities.all()
	}
}

// taken claims a task and reads it with read, which returns nil where there turns out to be nothing to do. What
// cannot be handed out is given back.
func taken[T any](ctx context.Context, b *Backend, t table, queues []workflow.Queue, duration time.Duration,
	read func(context.Context, lease) (*T, error),
) (*T, error) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	if err := b.giveBack(own); err != nil {
		return nil, err
	}
	for {
		l, err := b.claim(own, t, queues, duration)
		if err != nil || l == nil {
			return nil, err
		}
		task, err := read(own, *l)
		switch {
		case err != nil:
			// The lease stays, unless it was the database's trouble: a task that cannot be read must not come back at
			// once, again and again.
			b.unsettle(*l, err)
			return nil, err
		case task == nil:
			continue
		case ctx.Err() != nil:
			return nil, b.release(own, *l)
		}
		return task, nil
	}
}
