package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// A client that takes in nothing of its answer for so long is cut off.
	writeWithin = 30 * time.Second
	// A long answer goes out in pieces of this many bytes, each with the whole of that time.
	writePiece = 64 << 10
)

// serve answers requests from now on; what it answers is the gate's business.
func (a *App) serve(fail context.CancelCauseFunc) *http.Server {
	server := newServer(a.gate, writeWithin, a.log)
	a.watchers.Go(func() {
		defer close(a.served)
		if err := server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			fail(fmt.Errorf("serving HTTP: %w", err))
		}
	})
	a.log.Info("listening", "address", a.listener.Addr().String())
	return server
}

func newServer(h http.Handler, writeWithin time.Duration, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           limitWrites(h, writeWithin),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // clients that break off, mostly
		// No WriteTimeout: it would count from the request's header, and purging a million dead jobs answers when it
		// is done. limitWrites bounds the writes alone; the API bounds the reading of bodies.
	}
}

// limitWrites gives every write of an answer the time within, however long the work before it took. A connection keeps
// its deadline from one request to the next, so one is set as well for what net/http writes by itself: "100 Continue"
// and what a handler leaves in its buffers.
func limitWrites(next http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited := &limitedWriter{ResponseWriter: w, control: http.NewResponseController(w), within: within}
		limited.extend()
		defer limited.extend()
		next.ServeHTTP(limited, r)
	})
}

type limitedWriter struct {
	http.ResponseWriter

	control *http.ResponseController
	within  time.Duration
}

// extend can only fail on a connection that is gone.
func (l *limitedWriter) extend() { _ = l.control.SetWriteDeadline(time.Now().Add(l.within)) }

// Write writes all of b, or fails with os.ErrDeadlineExceeded once nobody takes it in.
func (l *limitedWriter) Write(b []byte) (written int, err error) {
	for {
		piece := b[written:min(len(b), written+writePiece)]
		l.extend()
		n, err := l.ResponseWriter.Write(piece)
		if written += n; err != nil || written >= len(b) {
			return written, err
		}
	}
}

// Unwrap is for http.ResponseController.
func (l *limitedWriter) Unwrap() http.ResponseWriter { return l.ResponseWriter }
