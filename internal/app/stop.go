package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// When, after the stop began, each part must have come to its end: one deadline for all, not a time for each.
const (
	// The broker breaks off attempts that are still under way then; it has up to 5 s more to write down their outcomes.
	stopWorkWithin = 8 * time.Second
	stopHTTPWithin = 14 * time.Second
	stopWithin     = 15 * time.Second // all of it, the private database too

	stopDatabaseWithin = 10 * time.Second // of a command that used the private database
)

// stop ends what was started, in this order, and is fine with what was not: the listener, the broker with the background
// work beside it, the requests, the connections to the database, the private database. What does not end in order is
// mentioned in the log and is no failure: a process that is killed loses nothing either.
func (a *App) stop(server *http.Server, endDetached context.CancelFunc) {
	begin := time.Now()
	a.progress.draining()
	var errs []error
	// Who comes now is to go to another instance. On connections that are open requests go on meanwhile: broadcasts are
	// refused with 503, /readyz says that this instance drains.
	if err := a.listener.Close(); err != nil {
		errs = append(errs, fmt.Errorf("closing the listener: %w", err))
	}
	<-a.served
	if a.parts != nil {
		errs = append(errs, a.parts.stop(begin.Add(stopWorkWithin))...)
	} else if a.pruner != nil { // it was not started, and has opened its destination
		errs = append(errs, until("pruning", begin.Add(stopWorkWithin), a.pruner.Stop))
	}
	errs = append(errs, until("HTTP", begin.Add(stopHTTPWithin), func(ctx context.Context) error {
		endDetached() // requeues and purges of many end between two batches
		if err := server.Shutdown(ctx); err != nil {
			a.log.Warn("requests were cut off", "error", err)
			return server.Close()
		}
		return nil
	}))
	if a.store != nil {
		if err := a.store.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing the connections to the database: %w", err))
		}
	}
	a.watchers.Wait() // nobody starts the private database again from here on
	if a.private != nil {
		errs = append(errs, until("the private database", begin.Add(stopWithin), a.private.Stop))
	}
	if err := errors.Join(errs...); err != nil {
		a.log.Warn("not everything stopped in order", "error", err)
	}
	a.log.Info("stopped", "took", time.Since(begin))
}

// stop ends the broker and the background work, at the same time.
func (p *parts) stop(deadline time.Time) []error {
	errs := make([]error, len(p.background))
	var stops sync.WaitGroup
	for i, b := range p.background {
		stops.Go(func() { errs[i] = until(b.name, deadline, b.stop) })
	}
	stops.Wait()
	return errs
}

// until stops one part, which has time until the deadline.
func until(name string, deadline time.Time, stop func(context.Context) error) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if err := stop(ctx); err != nil {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	return nil
}
