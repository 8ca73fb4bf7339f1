package durable

import (
	"context"
	"sync"
	"time"

	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow/executor"
)

// executorCache keeps executions in memory between slices, so that a slice need not replay the history. The runtime's
// own leaves their goroutines behind when it stops. What was not used for a time is dropped.
type executorCache struct {
	unused time.Duration

	mu      sync.Mutex
	entries map[Execution]cached
}

type cached struct {
	executor executor.WorkflowExecutor
	usedAt   time.Time
}

var _ executor.Cache = (*executorCache)(nil)

func newExecutorCache(unused time.Duration) *executorCache {
	return &executorCache{unused: unused, entries: map[Execution]cached{}}
}

// Get implements executor.Cache.
func (c *executorCache) Get(_ context.Context, instance *core.WorkflowInstance) (executor.WorkflowExecutor, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[executionOf(instance)]
	if !ok || time.Since(e.usedAt) > c.unused {
		return nil, false, nil
	}
	return e.executor, true, nil
}

// Store implements executor.Cache.
func (c *executorCache) Store(_ context.Context, instance *core.WorkflowInstance, e executor.WorkflowExecutor) error {
	c.mu.Lock()
	before, ok := c.entries[executionOf(instance)]
	c.entries[executionOf(instance)] = cached{e, time.Now()}
	c.mu.Unlock()
	if ok && before.executor != e {
		before.executor.Close()
	}
	return nil
}

// Evict implements executor.Cache.
func (c *executorCache) Evict(_ context.Context, instance *core.WorkflowInstance) error {
	c.drop(func(e Execution, _ cached) bool { return e == executionOf(instance) })
	return nil
}

// StartEviction implements executor.Cache: it drops what is unused until ctx ends.
func (c *executorCache) StartEviction(ctx context.Context) {
	ticker := time.NewTicker(c.unused / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			// Later than Get lets go of it, so that nobody has just got what is dropped here.
			c.drop(func(_ Execution, e cached) bool { return time.Since(e.usedAt) > 2*c.unused })
		}
	}
}

// close drops everything. No slice may be under way.
func (c *executorCache) close() {
	c.drop(func(Execution, cached) bool { return true })
}

func (c *executorCache) drop(which func(Execution, cached) bool) {
	c.mu.Lock()
	var dropped []executor.WorkflowExecutor
	for execution, e := range c.entries {
		if which(execution, e) {
			dropped = append(dropped, e.executor)
			delete(c.entries, execution)
		}
	}
	c.mu.Unlock()
	for _, e := range dropped {
		e.Close() // runs the deferred functions of the orchestration
	}
}
