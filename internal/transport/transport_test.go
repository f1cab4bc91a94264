package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
)

// silent is a body from which nothing comes until its exchange ends.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, context.Canceled // as http.Transport does
}

func (s silent) Close() error { return nil }

// TestAnswerEnds: a body that sends nothing ends with the watch's reason, one that its caller ends with the caller's.
func TestAnswerEnds(t *testing.T) {
	t.Parallel()
	stalled, left := &Stalled{Text: "nothing came for 1m0s"}, errors.New("the user left")
	type row struct {
		leaves time.Duration
		want   error
		took   time.Duration
	}
	eachInBubble(t, map[string]row{
		"it stalls":          {leaves: time.Hour, want: stalled, took: time.Minute},
		"its caller ends it": {leaves: time.Second, want: left, took: time.Second},
	}, func(t *testing.T, tc row) {
		parent, leave := context.WithCancelCause(t.Context())
		defer time.AfterFunc(tc.leaves, func() { leave(left) }).Stop()
		ctx, w := NewWatch(parent)
		body := w.Answer(silent{ctx}, time.Minute, stalled)
		time.Sleep(2 * time.Minute * (tc.leaves / time.Hour)) // between two reads no time counts
		begun := time.Now()
		if _, err := body.Read(make([]byte, 1)); !errors.Is(err, tc.want) || time.Since(begun) != tc.took {
			t.Errorf("after %s: %v, want %v", time.Since(begun), err, tc.want)
		}
		err := body.Close()
		must.Hold(t, err == nil && ctx.Err() != nil, "closed: %v, the exchange ended: %t", err, ctx.Err() != nil)
	})
}

// TestBoundedDial: a peer that takes no data ends the connection, for good.
func TestBoundedDial(t *testing.T) {
	t.Parallel()
	type row struct {
		deadline time.Duration // of the owner; 0: none
		each     time.Duration // the peer takes a piece this often; 0: never
		took     time.Duration
		whole    bool
	}
	eachInBubble(t, map[string]row{
		"it takes nothing":       {took: time.Minute},
		"the owner waits less":   {deadline: time.Second, took: time.Second},
		"the owner waits more":   {deadline: time.Hour, took: time.Minute},
		"it takes all, but slow": {each: 50 * time.Second, took: 4 * 50 * time.Second, whole: true},
	}, func(t *testing.T, tc row) {
		ours, theirs := net.Pipe()
		dial := BoundedDial(func(ctx context.Context, _, _ string) (net.Conn, error) {
			left, ok := ctx.Deadline()
			must.Hold(t, ok && time.Until(left) == time.Second, "the attempt to connect has no limit")
			return ours, nil
		}, time.Second, time.Minute)
		conn := must.Get(dial(t.Context(), "tcp", "pve1:8006"))(t)
		if tc.deadline > 0 {
			must.Do(t, conn.SetDeadline(time.Now().Add(tc.deadline)))
		}
		if tc.each > 0 {
			go func() {
				for range 4 {
					time.Sleep(tc.each)
					_, _ = io.CopyN(io.Discard, theirs, 64<<10)
				}
			}()
		}
		begun := time.Now()
		_, err := conn.Write(make([]byte, 256<<10))
		must.Hold(t, (err == nil) == tc.whole && time.Since(begun) == tc.took, "after %s: %v", time.Since(begun), err)
		begun = time.Now()
		if _, err := conn.Write([]byte("close alert")); !tc.whole && (!errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != 0) {
			t.Errorf("once it is dead: %v after %s", err, time.Since(begun))
		}
	})
}

// eachInBubble is each with the time of a bubble.
func eachInBubble[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc T) {
		synctest.Test(t, func(t *testing.T) { test(t, tc) })
	})
}
