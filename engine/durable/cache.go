package durable

import (
	"context"
	"sync"
	"time"

	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow/executor"
)

// executorCache keeps executions in memory between slices, so that a slice need not replay the history. What was not
// used for a time is dropped.
//
// The runtime's own cache leaves goroutines behind when it stops, and lends an executor to whoever asks: it may close
// one that executes, or lend it twice when a lease was lost, and executors are not safe for that. This one lends an
// executor to one task at a time, takes it back only when its slice was stored, and closes none that is lent.
type executorCache struct {
	unused time.Duration

	mu      sync.Mutex
	entries map[Execution]*cached
	lent    sync.WaitGroup
}

type cached struct {
	executor executor.WorkflowExecutor
	usedAt   time.Time
	// user is the task that it is lent to, nil: none. A task is known by its instance's address: each one that the
	// backend hands out has an instance of its own, and the runtime passes that on.
	user *core.WorkflowInstance
}

var _ executor.Cache = (*executorCache)(nil)

func newExecutorCache(unused time.Duration) *executorCache {
	return &executorCache{unused: unused, entries: map[Execution]*cached{}}
}

// Get implements executor.Cache. An executor that is lent is not there for others: they replay the history.
func (c *executorCache) Get(_ context.Context, task *core.WorkflowInstance) (executor.WorkflowExecutor, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[executionOf(task)]
	if !ok || e.user != nil {
		return nil, false, nil
	}
	e.user = task
	return e.executor, true, nil
}

// Store implements executor.Cache. The runtime calls it right after Get, with what that returned or a new executor,
// and ends ctx when it is done with the task.
func (c *executorCache) Store(ctx context.Context, task *core.WorkflowInstance, lent executor.WorkflowExecutor) error {
	c.mu.Lock()
	e, before := c.entries[executionOf(task)], (*cached)(nil)
	if e == nil || e.user != task {
		// What is there was lent when Get looked. If it still is, it is closed when it no longer is.
		if e != nil && e.user == nil {
			before = e
		}
		e = &cached{executor: lent, user: task}
		c.entries[executionOf(task)] = e
	}
	c.mu.Unlock()
	if before != nil {
		before.executor.Close()
	}
	c.lent.Add(1)
	context.AfterFunc(ctx, func() {
		defer c.lent.Done()
		c.giveUp(task, e)
	})
	return nil
}

// keep takes an executor back whose slice was stored.
func (c *executorCache) keep(task *core.WorkflowInstance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[executionOf(task)]; ok && e.user == task {
		e.user, e.usedAt = nil, time.Now()
	}
}

// giveUp drops an executor unless it was taken back: it is ahead of the history, or its execution has ended.
func (c *executorCache) giveUp(task *core.WorkflowInstance, e *cached) {
	c.mu.Lock()
	lent := e.user == task
	if lent {
		e.user = nil
		if c.entries[executionOf(task)] == e {
			delete(c.entries, executionOf(task))
		}
	}
	c.mu.Unlock()
	if lent {
		e.executor.Close() // runs the deferred functions of the orchestration
	}
}

// Evict implements executor.Cache. The runtime calls it for executions that end: giveUp does what is to be done.
func (c *executorCache) Evict(context.Context, *core.WorkflowInstance) error { return nil }

// StartEviction implements executor.Cache: it drops what is unused until ctx ends.
func (c *executorCache) StartEviction(ctx context.Context) {
	ticker := time.NewTicker(c.unused / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.drop(c.unused)
		}
	}
}

// close drops everything, when the runtime is done with all tasks.
func (c *executorCache) close() {
	c.lent.Wait()
	c.drop(0)
}

// drop closes what was not used for a time and is not lent.
func (c *executorCache) drop(unused time.Duration) {
	c.mu.Lock()
	var dropped []executor.WorkflowExecutor
	for execution, e := range c.entries {
		if e.user == nil && time.Since(e.usedAt) >= unused {
			dropped = append(dropped, e.executor)
			delete(c.entries, execution)
		}
	}
	c.mu.Unlock()
	for _, e := range dropped {
		e.Close()
	}
}
