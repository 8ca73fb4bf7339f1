package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// What stopping takes at most: 15 s in all for what is in flight, then the private database's own time.
const (
	stopBrokerWithin     = 9 * time.Second // and a grace to write down outcomes that the broker adds
	stopHTTPWithin       = 2 * time.Second
	stopBackgroundWithin = 2 * time.Second
	stopDatabaseWithin   = 10 * time.Second
)

// stop ends what was started, in this order, and is fine with what was not.
func (a *App) stop(server *http.Server, endDetached context.CancelFunc) error {
	begin := time.Now()
	a.progress.draining()
	var errs []error
	step := func(name string, within time.Duration, stop func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stopping %s: %w", name, err))
		}
	}
	if a.parts != nil {
		// Requests go on meanwhile: broadcasts are refused with 503, /readyz says that this instance drains.
		step("the broker", stopBrokerWithin, a.parts.broker.Stop)
	}
	step("HTTP", stopHTTPWithin, func(ctx context.Context) error {
		endDetached() // requeues and purges of many end between two batches
		if err := server.Shutdown(ctx); err != nil {
			a.log.Warn("requests were cut off", "error", err)
			return server.Close()
		}
		return nil
	})
	if a.parts != nil {
		for _, b := range a.parts.background {
			step(b.name, stopBackgroundWithin, b.stop)
		}
	}
	if a.store != nil {
		if err := a.store.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing the connections to the database: %w", err))
		}
	}
	a.watchers.Wait() // nobody starts the private database again from here on
	if a.private != nil {
		step("the private database", stopDatabaseWithin, a.private.Stop)
	}
	a.log.Info("stopped", "took", time.Since(begin))
	return errors.Join(errs...)
}
