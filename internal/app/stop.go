package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// What stopping takes at most: 15 s in all for what is in flight (the broker takes up to 5 s on top to write down
// outcomes), then the private database's own time.
const (
	stopBrokerWithin     = 7 * time.Second
	stopHTTPWithin       = 2 * time.Second
	stopBackgroundWithin = 10 * time.Second // beside the broker
	stopDatabaseWithin   = 10 * time.Second
)

// stop ends what was started, in this order, and is fine with what was not: the broker with the background work beside
// it, HTTP, the connections to the database, the private database. What does not end in order is mentioned in the log
// and is no failure: a process that is killed loses nothing either.
func (a *App) stop(server *http.Server, endDetached context.CancelFunc) {
	begin := time.Now()
	a.progress.draining()
	var errs []error
	if a.parts != nil {
		// Requests go on meanwhile: broadcasts are refused with 503, /readyz says that this instance drains.
		errs = append(errs, a.parts.stop()...)
	}
	if a.parts == nil && a.pruner != nil {
		errs = append(errs, within("pruning", stopBackgroundWithin, a.pruner.Stop)) // it was not started, and has opened its destination
	}
	errs = append(errs, within("HTTP", stopHTTPWithin, func(ctx context.Context) error {
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
		errs = append(errs, within("the private database", stopDatabaseWithin, a.private.Stop))
	}
	if err := errors.Join(errs...); err != nil {
		a.log.Warn("not everything stopped in order", "error", err)
	}
	a.log.Info("stopped", "took", time.Since(begin))
}

// stop ends the broker and the background work, at the same time.
func (p *parts) stop() []error {
	errs := make([]error, 1+len(p.background))
	var stops sync.WaitGroup
	stops.Go(func() { errs[0] = within("the broker", stopBrokerWithin, p.broker.Stop) })
	for i, b := range p.background {
		stops.Go(func() { errs[i+1] = within(b.name, stopBackgroundWithin, b.stop) })
	}
	stops.Wait()
	return errs
}

// within stops one part, which has so long for it.
func within(name string, limit time.Duration, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := stop(ctx); err != nil {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	return nil
}
