package pve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

// loss is the fate of a change in transit.
type loss struct {
	before    bool                      // it does not reach Proxmox
	then      func(t *testing.T, l lab) // what happens before the client notices
	status    string                    // "595 Connection refused": of the answer instead; "": the connection breaks
	every     bool                      // not only the first time
	late      time.Duration             // after which it reaches Proxmox all the same
	overtaken bool                      // it reaches Proxmox just before its second request
}

// losing is a lab whose client loses changes, or the answers to them, once it is armed.
type losing struct {
	lab
	t     *testing.T
	loss  loss
	armed atomic.Bool
	lost  int
	late  sync.WaitGroup // changes that are on their way
}

func newLosing(t *testing.T, how loss) *losing {
	t.Helper()
	l := &losing{t: t, lab: newLab(t), loss: how}
	l.Client = l.site.clientWith(t, api.Options{RootCAs: l.site.Pool(), Poll: time.Second, Wrap: func(inner http.RoundTripper) http.RoundTripper {
		return trip(func(req *http.Request) (*http.Response, error) { return l.send(inner, req) })
	}}, "pve1")
	return l
}

// trip is a way to Proxmox.
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

func (l *losing) send(inner http.RoundTripper, req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet || !l.armed.Load() {
		return inner.RoundTrip(req)
	}
	l.armed.Store(l.loss.every || l.loss.overtaken)
	l.lost++
	httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{}) // from here on it may have arrived
	var body []byte
	if req.Body != nil {
		body = must.Get(io.ReadAll(req.Body))(l.t)
	}
	arrives := func() (*http.Response, error) {
		again := req.Clone(l.t.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := inner.RoundTrip(again)
		if err == nil {
			answer := must.Get(io.ReadAll(resp.Body))(l.t)
			must.Do(l.t, resp.Body.Close())
			resp.Body = io.NopCloser(bytes.NewReader(answer))
		}
		return resp, err
	}
	switch {
	case l.loss.overtaken && l.lost > 1:
		_, _ = arrives() // the first one
		return arrives()
	case l.loss.late > 0:
		l.late.Go(func() {
			time.Sleep(l.loss.late)
			_, _ = arrives()
		})
	case !l.loss.before && !l.loss.overtaken:
		_, _ = arrives()
	}
	if l.loss.then != nil {
		l.loss.then(l.t, l.lab)
	}
	if l.loss.status == "" {
		return nil, io.ErrUnexpectedEOF
	}
	code := must.Get(strconv.Atoi(l.loss.status[:3]))(l.t)
	return &http.Response{Status: l.loss.status, StatusCode: code, Body: http.NoBody, Request: req}, nil
}

// in is a lab with what the change needs, whose answers are lost from then on.
func (c lostChange) in(t *testing.T, how loss) *losing {
	t.Helper()
	l := newLosing(t, how)
	if c.prepare != nil {
		c.prepare(t, l.lab)
	}
	l.armed.Store(true)
	return l
}

// wantDone makes the change, however it is lost, and requires it to have happened.
func (c lostChange) wantDone(t *testing.T, how loss) {
	t.Helper()
	l := c.in(t, how)
	if err := c.do(t, l.lab); err != nil || !c.done(l.lab) {
		t.Errorf("done: %v, error %v", c.done(l.lab), err)
	}
	l.late.Wait()
}

// killWorker ends the running task, as the death of its host does.
func killWorker(_ *testing.T, l lab) {
	for _, task := range l.world.Tasks() {
		if task.Running {
			l.world.KillTask(task.UPID)
		}
	}
}

// lostChange is a change and the world that it needs.
type lostChange struct {
	prepare func(*testing.T, lab)
	do      func(*testing.T, lab) error
	done    func(lab) bool // whether it has happened, exactly once
	again   bool           // it may be sent twice
	atOnce  bool           // it has no worker
}

func lostChanges() map[string]lostChange {
	all := lostEdits()
	maps.Copy(all, lostSwitches())
	return all
}

// setting sets and deletes keys of VM 9011.
func setting(set map[string]string, del ...string) func(*testing.T, lab) error {
	return func(t *testing.T, l lab) error { return l.SetConfig(t.Context(), l.read(t, 9011), set, del) }
}

// lostSwitches turn the VM and Proxmox HA on and off.
func lostSwitches() map[string]lostChange {
	running := func(l lab) bool { vm, err := l.world.LookupVM("pve1", 9011); return err == nil && vm.Running }
	start := func(t *testing.T, l lab) { must.Do(t, l.Start(t.Context(), l.read(t, 9011))) }
	resource := cluster.HAResource{VMID: 9011, State: "stopped", Settings: map[string]string{"max_restart": "2"}}
	return map[string]lostChange{
		"start": {
			do:   func(t *testing.T, l lab) error { return l.Start(t.Context(), l.read(t, 9011)) },
			done: running, again: true,
		},
		"stop": {
			prepare: start,
			do:      func(t *testing.T, l lab) error { return l.Stop(t.Context(), l.read(t, 9011)) },
			done:    func(l lab) bool { return !running(l) },
		},
		"shut down": {
			prepare: start,
			do:      func(t *testing.T, l lab) error { return l.Shutdown(t.Context(), l.read(t, 9011), time.Minute) },
			done:    func(l lab) bool { return !running(l) },
		},
		"migrate": {
			prepare: func(t *testing.T, l lab) { l.may("VM.Migrate") },
			do:      func(t *testing.T, l lab) error { return l.Migrate(t.Context(), l.read(t, 9011), "pve2") },
			done:    func(l lab) bool { _, err := l.world.LookupVM("pve2", 9011); return err == nil },
			again:   true,
		},
		"put into HA": {
			do:    func(t *testing.T, l lab) error { return l.AddHA(t.Context(), resource) },
			done:  func(l lab) bool { return len(l.world.HA()) == 1 },
			again: true, atOnce: true,
		},
		"change in HA": {
			prepare: func(t *testing.T, l lab) { must.Do(t, l.AddHA(t.Context(), resource)) },
			do: func(t *testing.T, l lab) error {
				return l.SetHA(t.Context(), cluster.HAResource{VMID: 9011, State: "ignored", Settings: map[string]string{"max_restart": "3"}})
			},
			done:  func(l lab) bool { return l.world.HA()[0].State == "ignored" },
			again: true, atOnce: true,
		},
		"take out of HA": {
			prepare: func(t *testing.T, l lab) { must.Do(t, l.AddHA(t.Context(), resource)) },
			do:      func(t *testing.T, l lab) error { return l.RemoveHA(t.Context(), 9011) },
			done:    func(l lab) bool { return len(l.world.HA()) == 0 },
			atOnce:  true,
		},
	}
}

func lostEdits() map[string]lostChange {
	config := func(l lab, id int, key string) string {
		vm, err := l.world.LookupVM("pve1", id)
		if err != nil {
			return ""
		}
		return vm.Merged()[key]
	}
	return map[string]lostChange{
		"create": {
			do: func(t *testing.T, l lab) error {
				return l.CreateVM(t.Context(), "pve1", 9090, map[string]string{
					"name": "new", "description": "made by me\n", "tags": "b;a", "net0": "virtio,bridge=vmbr0", "scsi0": "fast:1,serial=a,discard=on", "onboot": "0", "pool": "lab",
				})
			},
			done:  func(l lab) bool { return strings.Contains(config(l, 9090, "scsi0"), "serial=a") },
			again: true,
		},
		"set": {
			do:    setting(map[string]string{"onboot": "1", "boot": "order=scsi0"}, "agent"),
			done:  func(l lab) bool { return config(l, 9011, "onboot") == "1" && config(l, 9011, "agent") == "" },
			again: true, atOnce: true,
		},
		"set a drive": {
			do: setting(map[string]string{"scsi5": "fast:1,serial=b"}, "ide2"),
			done: func(l lab) bool {
				return strings.Contains(config(l, 9011, "scsi5"), "serial=b") && config(l, 9011, "ide2") == ""
			},
			again: true,
		},
		"free a disk": {
			do:    func(t *testing.T, l lab) error { return l.FreeDisk(t.Context(), l.read(t, 9011), "scsi1") },
			done:  func(l lab) bool { return config(l, 9011, "scsi1") == "" },
			again: true,
		},
		"grow a disk": {
			do:    func(t *testing.T, l lab) error { return l.GrowDisk(t.Context(), l.read(t, 9011), "scsi1", "30G") },
			done:  func(l lab) bool { return strings.Contains(config(l, 9011, "scsi1"), "size=30G") },
			again: true,
		},
		"set its pool": {
			prepare: func(t *testing.T, l lab) { l.may("Pool.Allocate"); l.world.AddPool("other") },
			do:      func(t *testing.T, l lab) error { return l.SetPool(t.Context(), 9011, "other") },
			done:    func(l lab) bool { vm, err := l.world.LookupVM("pve1", 9011); return err == nil && vm.Pool == "other" },
			again:   true, atOnce: true,
		},
		"move a disk": {
			prepare: func(t *testing.T, l lab) { must.Do(t, l.CreateVM(t.Context(), "pve1", 9090, nil)) },
			do: func(t *testing.T, l lab) error {
				return l.MoveDisk(t.Context(), l.read(t, 9011), "scsi1", 9090, "scsi4")
			},
			done:  func(l lab) bool { return config(l, 9011, "scsi1") == "" && config(l, 9090, "scsi4") != "" },
			again: true,
		},
		"delete": {
			do:   func(t *testing.T, l lab) error { return l.DeleteVM(t.Context(), l.read(t, 9011)) },
			done: func(l lab) bool { _, err := l.world.LookupVM("pve1", 9011); return err != nil },
		},
	}
}

// TestLostAnswer loses the answer to each change, before or after Proxmox has received it: what has happened counts as
// done; what has not is sent again if that is safe, and is otherwise an error that says so.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		loss loss
		want func(lostChange) (done, lost bool)
	}{
		"before it arrives": {loss{before: true}, func(c lostChange) (bool, bool) { return c.again, !c.again }},
		"after it was done": {loss{}, func(lostChange) (bool, bool) { return true, false }},
		"595, nothing done": {loss{before: true, status: "595 Connection refused"}, func(c lostChange) (bool, bool) { return c.again, !c.again }},
		"596, all done":     {loss{status: "596 Connection timed out"}, func(lostChange) (bool, bool) { return true, false }},
		"each time":         {loss{before: true, every: true}, func(lostChange) (bool, bool) { return false, true }},
		"worker killed":     {loss{then: killWorker}, func(c lostChange) (bool, bool) { return c.atOnce, !c.atOnce }},
	}
	for way, w := range ways {
		if testing.Short() && way != "after it was done" {
			continue
		}
		for name, tc := range lostChanges() {
			t.Run(way+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					lossy := tc.in(t, w.loss)
					began := time.Now()
					err := tc.do(t, lossy.lab)
					done, lost := w.want(tc)
					if errors.Is(err, cluster.ErrLostAnswer) != lost || !lost && err != nil {
						t.Errorf("error is %v; want a lost answer: %v", err, lost)
					}
					must.Equal(t, "done", done, tc.done(lossy.lab))
					within(t, began, 5*time.Minute)
				})
			})
		}
	}
}

// TestLostAnswerOfAFailure: a worker fails whose name was never received. Its own
// error is returned, and nothing is sent again.
func TestLostAnswerOfAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLosing(t, loss{})
		l.world.FailNext("qmcreate", "no space left on device")
		l.armed.Store(true)
		err := l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"scsi0": "fast:1"})
		e, ok := errors.AsType[*api.TaskError](err)
		if !ok || !strings.HasSuffix(e.Exit, "no space left on device") || errors.Is(err, cluster.ErrLostAnswer) || !errors.Is(err, api.ErrNoSpace) {
			t.Errorf("error is %v", err)
		}
	})
}

// TestLostAnswerAndAnotherProcess: another process with the same token does something
// else meanwhile, which is never taken for our work.
func TestLostAnswerAndAnotherProcess(t *testing.T) {
	type row struct {
		meanwhile func(*testing.T, lab)
		do        func(*testing.T, lab) error
		is        error
	}
	cases := map[string]row{
		"VM of the same number": {
			func(t *testing.T, l lab) {
				_, err := l.world.CreateVM("recast@pve!roll", "pve1", world.CreateRequest{ID: 9090, Config: map[string]string{"name": "theirs"}})
				must.Do(t, err)
			},
			func(t *testing.T, l lab) error {
				return l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"name": "mine"})
			},
			cluster.ErrExists,
		},
		"another configuration": {someoneElse, setting(map[string]string{"onboot": "1"}), cluster.ErrChanged},
		"another configuration, not the drive": {
			someoneElse,
			setting(map[string]string{"scsi1": "fast:2,serial=data-wk1,discard=on"}),
			cluster.ErrChanged,
		},
		"another configuration, by a worker": {
			func(t *testing.T, l lab) {
				_, err := l.world.SetConfigTask("recast@pve!roll", "pve1", world.ChangeRequest{ID: 9011, Set: map[string]string{"cores": "3"}})
				must.Do(t, err)
			},
			setting(map[string]string{"ide2": "none,media=cdrom"}, "scsi1"),
			cluster.ErrChanged,
		},
	}
	inEachBubble(t, cases, func(t *testing.T, tc row) {
		l := newLosing(t, loss{before: true, then: tc.meanwhile})
		l.armed.Store(true)
		wantError(t, tc.do(t, l.lab), tc.is, "")
	})
}

// TestLostAnswerOfALateChange: a change arrives after we stopped waiting for its answer.
func TestLostAnswerOfALateChange(t *testing.T) {
	inEachBubble(t, lostChanges(), func(t *testing.T, tc lostChange) { tc.wantDone(t, loss{late: 12 * time.Second}) })
}

// TestLostAnswerIsOvertaken: a change arrives just before its second request: that is refused, and the change is done.
func TestLostAnswerIsOvertaken(t *testing.T) {
	again := lostChanges()
	maps.DeleteFunc(again, func(_ string, tc lostChange) bool { return !tc.again })
	inEachBubble(t, again, func(t *testing.T, tc lostChange) { tc.wantDone(t, loss{overtaken: true}) })
}

// TestLostAnswerRightAfterAnother: a change of the same kind and object ends just
// before; its task is not taken for that of the lost one.
func TestLostAnswerRightAfterAnother(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLosing(t, loss{before: true})
		must.Do(t, l.SetConfig(t.Context(), l.read(t, 9011), map[string]string{"scsi5": "fast:1"}, nil))
		vm := l.read(t, 9011)
		l.armed.Store(true)
		must.Do(t, l.SetConfig(t.Context(), vm, map[string]string{"scsi6": "fast:1"}, nil))
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
		must.Equal(t, "sent", "[POST /nodes/pve1/qemu]", fmt.Sprint(changes(pve1.Requests())))
	})
}
