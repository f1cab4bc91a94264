package pve

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// TestLostAnswerOfALateChange: a change arrives after we stopped waiting for its
// answer.
func TestLostAnswerOfALateChange(t *testing.T) {
	t.Parallel()
	for name, tc := range lostChanges() {
		runInBubble(t, name, func(t *testing.T) {
			lossy := tc.in(t, loss{before: true})
			var wg sync.WaitGroup
			lossy.loss.answer = func(_ http.ResponseWriter, r *http.Request) {
				later := copied(t, r)
				wg.Go(func() {
					defer func() { _ = recover() }()
					time.Sleep(12 * time.Second)
					lossy.api.ServeHTTP(httptest.NewRecorder(), later)
				})
				panic(http.ErrAbortHandler)
			}
			tc.wantDone(t, lossy.lab)
			wg.Wait()
		})
	}
}

// TestLostAnswerIsOvertaken: a change arrives just before its second request: that
// is refused, and the change is done.
func TestLostAnswerIsOvertaken(t *testing.T) {
	t.Parallel()
	for name, tc := range lostChanges() {
		if !tc.again {
			continue
		}
		runInBubble(t, name, func(t *testing.T) {
			lossy := tc.in(t, loss{before: true, every: true})
			second := false
			lossy.loss.answer = func(rw http.ResponseWriter, r *http.Request) {
				if !second {
					second = true
					lost(rw, r)
				}
				lossy.api.ServeHTTP(httptest.NewRecorder(), copied(t, r))
				lossy.api.ServeHTTP(rw, r)
			}
			tc.wantDone(t, lossy.lab)
		})
	}
}

// TestLostAnswerRightAfterAnother: a change of the same kind and object ends just
// before; its task is not taken for that of the lost one.
func TestLostAnswerRightAfterAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lossy := newLosing(t, loss{before: true})
		l := lossy.lab
		must(t, l.SetConfig(t.Context(), l.read(t, 9011), map[string]string{"scsi5": "fast:1"}, nil))
		vm := l.read(t, 9011)
		lossy.arm()
		must(t, l.SetConfig(t.Context(), vm, map[string]string{"scsi6": "fast:1"}, nil))
		if now := l.read(t, 9011); now.Config["scsi6"] == "" {
			t.Errorf("now: %v", now.Config)
		}
	})
}

// TestNothingCanBeLookedUp bounds the search after a lost answer.
func TestNothingCanBeLookedUp(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("POST /nodes/pve1/qemu", lost)
		pve1.On("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=qmcreate", lost)
		start := time.Now()
		err := c.CreateVM(t.Context(), "pve1", 101, nil)
		if took := time.Since(start); !errors.Is(err, cluster.ErrLostAnswer) || took < searchTime || took > searchTime+time.Minute {
			t.Errorf("error %v after %s", err, took)
		}
		same(t, "sent", "[POST /nodes/pve1/qemu]", fmt.Sprint(changes(pve1.Requests())))
	})
}
