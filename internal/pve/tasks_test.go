package pve

import (
	"bytes"
	"cmp"
	"context"
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
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/wait"
)

// TestOwnTasks returns the tasks of our token about the requested VMs.
func TestOwnTasks(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"offline"}]`))
		var rows []string
		for _, task := range []string{
			"qmshutdown:101:recast@pve!roll", "qmmove:9900-scsi1>101-scsi1:recast@pve!roll", "qmmove:301-scsi1>7900-scsi1:recast@pve!roll",
			"qmshutdown:301:recast@pve!roll", "qmstop:101:root@pam", "imgcopy::recast@pve!roll", "qmstart:1010:recast@pve!roll",
		} {
			rows = append(rows, `{"upid":"UPID:pve1:0000ABCD:00012345:386D4380:`+task+`:"}`)
		}
		pve1.On("GET /nodes/pve1/tasks?source=active&limit=500", data("["+strings.Join(rows, ",")+"]"))
		got := must.Get(c.OwnTasks(t.Context(), func(id cluster.VMID) bool { return id == 101 }))(t)
		must.Equal(t, "tasks", []string{"qmshutdown 101 on pve1", "qmmove 9900-scsi1>101-scsi1 on pve1"}, got)
	})
}

const (
	taskPath   = "GET /nodes/pve1/tasks/UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve%21roll:"
	statusPath = taskPath + "/status"
	logPath    = taskPath + "/log?limit=500"
)

var running = data(`{"status":"running","upid":"` + testUPID + `"}`)

func stopped(exit string) route { return data(`{"status":"stopped","exitstatus":"` + exit + `"}`) }

func TestTask(t *testing.T) {
	log := data(`[{"n":1,"t":"removing image"},{"n":2,"t":"cannot free fast:vm-101-disk-0"},{"n":3,"t":"TASK WARNINGS: 1"}]`)
	type row struct {
		answers []route
		want    string
		lost    bool
	}
	onEachNode(t, map[string]row{
		"ends well":          {[]route{running, running, stopped("OK")}, "", false},
		"outlasts a fault":   {[]route{running, raw("595 Connection refused", ""), lost, stopped("OK")}, "", false},
		"outlasts a restart": {[]route{running, raw("500 ipcc_send_rec[1] failed: Connection refused", ""), stopped("OK")}, "", false},
		"fails":              {[]route{running, stopped("can't remove VM 101 - protection mode enabled")}, "task qmdestroy 101 on pve1: can't remove VM 101 - protection mode enabled", false},
		"warns":              {[]route{stopped("WARNINGS: 1")}, "task qmdestroy 101 on pve1: WARNINGS: 1 (removing image | cannot free fast:vm-101-disk-0)", false},
		"was killed":         {[]route{running, stopped("unexpected status")}, "task qmdestroy 101 on pve1: unexpected status (removing image | cannot free fast:vm-101-disk-0); since then: VM 101 \"\" on pve1 is there", true},
		"ends nowhere":       {[]route{data(`{"status":"stopped"}`)}, "task qmdestroy 101 on pve1: unexpected status (removing image | cannot free fast:vm-101-disk-0); since then: VM 101 \"\" on pve1 is there", true},
		"is unknown": {
			[]route{raw("400 Parameter verification failed.", `{"errors":{"upid":"no such task"},"data":null}`)},
			cluster.ErrLostAnswer.Error() + ": task qmdestroy 101 on pve1: " + strings.TrimSuffix(statusPath, "%21roll:/status") + "!roll:/status: 400 Parameter verification failed.: upid: no such task; since then: VM 101 \"\" on pve1 is there", true,
		},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
		pve1.On(statusPath, tc.answers...)
		pve1.On(logPath, log)
		pve1.On("GET /nodes/pve1/qemu/101/config", data(`{"digest":"d"}`))
		pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[]`))
		err := c.DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1", Digest: "d"})
		must.Equal(t, "error", cmp.Or(tc.want, "<nil>"), fmt.Sprint(err))
		must.Equal(t, "lost answer", tc.lost, errors.Is(err, cluster.ErrLostAnswer))
	})
}

// TestTaskPolls: the end of a short task is seen soon, and a long one is polled hardly more often than the pause says.
// The next of its kind is polled when it is due.
func TestTaskPolls(t *testing.T) {
	type row struct {
		takes, late time.Duration // of the first task
		looks       int
		lateNext    time.Duration // of the third
		next        int           // polls of that one
	}
	cases := map[string]row{
		"at once":     {0, 0, 1, 0, 1},
		"short":       {250 * time.Millisecond, 60 * time.Millisecond, 11, 20 * time.Millisecond, 4},
		"a second":    {time.Second, 250 * time.Millisecond, 17, 40 * time.Millisecond, 5},
		"ten minutes": {10 * time.Minute, 2 * time.Second, 325, 2 * time.Second, 305},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		end := time.Now().Add(tc.takes)
		pve1.On("POST /nodes/pve1/qemu", data(`"`+testUPID+`"`))
		pve1.On(statusPath, func(w http.ResponseWriter, r *http.Request) {
			answer := running
			if !time.Now().Before(end) {
				answer = stopped("OK")
			}
			answer(w, r)
		})
		c := s.clientWith(t, api.Options{RootCAs: s.Pool(), Poll: 2 * time.Second}, "pve1")
		for i := range 3 {
			before := len(pve1.Requests()) - len(changes(pve1.Requests()))
			end = time.Now().Add(tc.takes)
			must.Do(t, c.CreateVM(t.Context(), "pve1", 101, nil))
			late, looks := time.Since(end), len(pve1.Requests())-len(changes(pve1.Requests()))-before
			must.Hold(t, (i != 0 || late <= tc.late && looks <= tc.looks) && (i != 2 || late <= tc.lateNext && looks <= tc.next),
				"task %d: %d looks, seen %s after its end", i+1, looks, late)
		}
	})
}

func TestWarningsOfOtherTasksAreReported(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("POST /nodes/pve1/qemu", data(`"`+testUPID+`"`))
		pve1.On(statusPath, stopped("WARNINGS: 1"))
		pve1.On(logPath, data(`[{"n":1,"t":"iothread is only valid with virtio disk"}]`))
		var warned []string
		c := s.clientWith(t, api.Options{RootCAs: s.Pool(), Warn: func(text string) { warned = append(warned, text) }}, "pve1")
		must.Do(t, c.CreateVM(t.Context(), "pve1", 101, nil))
		want := []string{"task qmdestroy 101 on pve1: WARNINGS: 1 (iothread is only valid with virtio disk)"}
		must.Equal(t, "warned", want, warned)
	})
}

func TestTaskWaitEnds(t *testing.T) {
	type row struct {
		timeout time.Duration
		status  route
		within  time.Duration
	}
	onEachNode(t, map[string]row{
		"with the context":                 {time.Minute, running, time.Minute},
		"when Proxmox becomes unavailable": {24 * time.Hour, raw("595 Connection refused", ""), outage + time.Minute},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
		pve1.On(statusPath, tc.status)
		ctx, cancel := context.WithTimeout(t.Context(), tc.timeout)
		defer cancel()
		start := time.Now()
		wantError(t, c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"}), cluster.ErrLostAnswer, "")
		must.Take(t, start, 0, tc.within)
	})
}

// TestStartedSince finds a task by everything except its name. The server's clock is
// ten years behind ours, and jumps from day to day.
func TestStartedSince(t *testing.T) {
	const up, clock = 86400, 0x386D4380
	upid := func(ago int, kind, id, user string) string {
		return fmt.Sprintf("UPID:pve1:0000ABCD:%08X:%08X:%s:%s:%s:", (up-ago)*100, clock, kind, id, user)
	}
	move := func(ago int) string { return upid(ago, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll") }
	mine := move(58)
	jumped := strings.Replace(mine, fmt.Sprintf("%08X", clock), fmt.Sprintf("%08X", clock+86400), 1)
	behind := strings.Replace(mine, fmt.Sprintf("%08X", clock), fmt.Sprintf("%08X", clock-86400), 1)
	type row struct {
		listed    []string
		status    route // "": a host that has been up for a day
		want, err string
	}
	onEachNode(t, map[string]row{
		"it runs":                  {listed: []string{mine}, want: mine},
		"dated a day ahead":        {listed: []string{jumped}, want: jumped},
		"dated a day behind":       {listed: []string{behind}, want: behind},
		"in whole seconds":         {listed: []string{move(64)}, want: move(64)},
		"nothing":                  {status: raw("403 Permission check failed (/nodes/pve1, Sys.Audit)", "")},
		"before it was sent":       {listed: []string{move(66)}},
		"before the host's boot":   {listed: []string{move(-1000)}},
		"another disk":             {listed: []string{upid(58, "qmmove", "100-scsi2>200-scsi5", "recast@pve!roll")}},
		"another token":            {listed: []string{upid(58, "qmmove", "100-scsi1>200-scsi5", "recast@pve!other")}},
		"the user itself":          {listed: []string{upid(58, "qmmove", "100-scsi1>200-scsi5", "recast@pve")}},
		"another kind":             {listed: []string{upid(58, "qmcreate", "100-scsi1>200-scsi5", "recast@pve!roll")}},
		"its name is known":        {listed: []string{move(57)}},
		"two of them":              {listed: []string{mine, move(1)}, err: "2 tasks could be the one"},
		"no task's name":           {listed: []string{"UPID:x"}, err: "is not the name of a Proxmox task"},
		"it is just ending":        {listed: []string{mine, mine}, want: mine},
		"other ticks":              {listed: []string{mine}, status: data(`{"uptime":43229,"cpuinfo":{"user_hz":200}}`), want: mine},
		"a host that just booted":  {listed: []string{move(86400 - 10)}, status: data(`{"uptime":40}`), want: move(86400 - 10)},
		"the uptime is unreadable": {listed: []string{mine}, status: raw("403 Permission check failed (/nodes/pve1, Sys.Audit)", ""), err: "/nodes/pve1/status: 403"},
		"no uptime in the answer":  {listed: []string{mine}, status: data(`{}`), err: "does not report its uptime"},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		rows := make([]string, 0, len(tc.listed))
		for _, u := range tc.listed {
			rows = append(rows, `{"upid":"`+u+`"}`)
		}
		pve1.On("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=qmmove", data("["+strings.Join(rows, ",")+"]"))
		if tc.status == nil {
			tc.status = data(`{"uptime":86400,"cpuinfo":{"user_hz":100}}`)
		}
		pve1.On("GET /nodes/pve1/status", tc.status)
		c.tasks.workers.Store(move(57), true)
		sent := time.Now()
		time.Sleep(time.Minute)
		worker := moveWorker(cluster.VM{ID: 100, Host: "pve1"}, "scsi1", 200, "scsi5")
		got, err := c.tasks.startedSince(t.Context(), worker, sent)
		wantError(t, err, nil, tc.err)
		must.Equal(t, "task", tc.want, got)
		if tc.want != "" {
			must.Equal(t, "the second time", "", must.Get(c.tasks.startedSince(t.Context(), worker, sent))(t))
		}
	})
}

// TestADeadWorkerIsNotRepeated: the worker of a change dies. However little of it
// shows, it is not sent again, because a volume may already have its new name.
func TestADeadWorkerIsNotRepeated(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		must.Do(t, l.CreateVM(t.Context(), "pve1", 9090, nil))
		vm := l.read(t, 9011)
		before := l.recorder.Mutations()
		time.AfterFunc(100*time.Millisecond, func() { killWorker(t, l) })
		wantError(t, l.MoveDisk(t.Context(), vm, "scsi1", 9090, "scsi1"), cluster.ErrLostAnswer, "")
		must.Equal(t, "sent", 1, l.recorder.Mutations()-before)
	})
}

// TestDurations: tasks of a kind are polled when they end, with little delay and few
// polls, however long the first one took.
func TestDurations(t *testing.T) {
	type row struct {
		first, others time.Duration
		looks         int           // of the last ten together
		late          time.Duration // of all together
	}
	must.Bubbles(t, map[string]row{
		"always alike":       {time.Second, time.Second, 20, 200 * time.Millisecond},
		"longer from now":    {time.Second, 1300 * time.Millisecond, 20, 200 * time.Millisecond},
		"shorter from now":   {time.Second, 700 * time.Millisecond, 20, 200 * time.Millisecond},
		"longer than a look": {5 * time.Second, 5 * time.Second, 60, 500 * time.Millisecond},
	}, func(t *testing.T, c row) {
		var d durations
		u := api.UPID{Type: "qmmove", ID: "101-scsi1>9001-scsi1"}
		once := func(takes time.Duration) (looks int, late time.Duration) {
			begun, ran := time.Now(), time.Duration(0)
			w := wait.For{First: firstPoll, Every: 2 * time.Second, Expected: d.expected(u)}
			err := wait.Until(t.Context(), w, func(context.Context) (bool, string, error) {
				looks++
				if time.Since(begun) < takes {
					ran = time.Since(begun)
					return false, "", nil
				}
				return true, "", nil
			})
			must.Do(t, err)
			d.add(u, ran, time.Since(begun))
			return looks, time.Since(begun) - takes
		}
		once(c.first)
		for range 20 {
			once(c.others)
		}
		looks, late := 0, time.Duration(0)
		for range 10 {
			l, by := once(c.others)
			looks, late = looks+l, late+by
		}
		t.Logf("%d looks, %s late", looks, late)
		must.Hold(t, looks <= c.looks && late <= c.late, "%d looks, %s late", looks, late)
		must.Equal(t, "expected of the same of another VM", d.expected(u), d.expected(api.UPID{Type: "qmmove", ID: "102-scsi1>9002-scsi1"}))
		must.Equal(t, "expected of another type", time.Duration(0), d.expected(api.UPID{Type: "qmstart", ID: "101"}))
		other := d.expected(api.UPID{Type: "qmmove", ID: "101-scsi0>9001-scsi30"})
		must.Hold(t, other != 0, "no estimate for a task of another drive")
	})
}

const (
	flock   = "can't lock file '/var/lock/qemu-server/lock-9011.conf' - got timeout"
	cfsLock = "cfs-lock 'storage-fast' error: got lock request timeout"
	// activeLock comes when the worker is already running.
	activeLock = "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout"
)

// someoneElse changes the VM concurrently.
func someoneElse(t *testing.T, l lab) {
	t.Helper()
	must.Do(t, l.world.SetConfig("recast@pve!roll", "pve1", world.ChangeRequest{ID: 9011, Set: map[string]string{"cores": "3"}}))
}

func TestIsLock(t *testing.T) {
	type row struct {
		err             error
		timeout, locked bool
	}
	must.Each(t, map[string]row{
		"VM's file":                  {err: &api.Error{Status: 500, Reason: flock, Message: flock}, timeout: true},
		"storage":                    {err: &api.TaskError{Exit: cfsLock}, timeout: true},
		"storage, while creating":    {err: &api.TaskError{Exit: "unable to create VM 9090 - " + cfsLock}, timeout: true},
		"no quorum":                  {err: &api.Error{Status: 500, Message: "cfs-lock 'file-user_cfg' error: no quorum!"}},
		"command took too long":      {err: &api.TaskError{Exit: "cfs-lock 'storage-fast' error: got lock timeout - aborting command"}},
		"one parameter of several":   {err: &api.Error{Status: 400, Params: map[string]string{"scsi1": cfsLock}}},
		"after something else":       {err: &api.TaskError{Exit: "unable to apply pending change: " + cfsLock}},
		"locked":                     {err: &api.TaskError{Exit: "VM is locked (backup)"}, locked: true},
		"a worker is at work":        {err: &api.Error{Status: 500, Reason: activeLock, Message: activeLock}},
		"answer lost as well":        {err: errors.Join(cluster.ErrLostAnswer, &api.TaskError{Exit: flock})},
		"without a kind":             {err: &api.Error{Status: 500, Message: "VM is locked"}, locked: true},
		"something that is no error": {},
	}, func(t *testing.T, tc row) {
		must.Equal(t, "timeout", tc.timeout, api.IsLockTimeout(tc.err))
		must.Equal(t, "locked", tc.locked, api.IsVMLocked(tc.err))
	})
}

// TestLocksAreWaitedFor: changes are refused because of a lock until it is released, the VM is changed, or time is up.
func TestLocksAreWaitedFor(t *testing.T) {
	onboot := setting(map[string]string{"onboot": "1"})
	create := func(t *testing.T, l lab) error {
		return l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"scsi0": "fast:1"})
	}
	remove := on9011((*Client).DeleteVM)
	const set, unset, backup = "PUT /nodes/pve1/qemu/9011/config", "DELETE /nodes/pve1/qemu/9011", "VM is locked (backup)"
	type row struct {
		match, message string
		times          int
		meanwhile      func(*testing.T, lab)
		do             func(*testing.T, lab) error
		is             error
		want           string // expected error
		hint           string
	}
	inEachLab(t, map[string]row{
		"gone in time":        {match: set, message: flock, times: 3, do: onboot},
		"storage's, a worker": {match: "qmcreate", message: cfsLock, times: 2, do: create},
		"before a removal":    {match: unset, message: flock, times: 2, do: remove},
		"for ever":            {match: set, message: flock, times: 1000, do: onboot, want: flock, hint: "at work on the same VM"},
		"changed meanwhile": {
			match: set, message: flock, times: 1000, do: onboot, is: cluster.ErrChanged, want: flock, hint: "running tasks", meanwhile: someoneElse,
		},
		"changed before a removal": {
			match: unset, message: flock, times: 1, do: remove, is: cluster.ErrChanged, want: flock, meanwhile: someoneElse,
		},
		"a backup's, start": {match: "qmstart", message: backup, times: 3, do: on9011((*Client).Start)},
		"a backup's, and the VM stops by itself": {
			match: "qmstop", message: backup, times: 1000,
			meanwhile: func(t *testing.T, l lab) { must.Do(t, l.world.PowerOff(9011)) },
			do: func(t *testing.T, l lab) error {
				must.Do(t, l.world.PowerOn(9011))
				return l.Stop(t.Context(), l.read(t, 9011))
			},
		},
		"a backup's, configuration": {match: set, message: backup, times: 1, do: onboot, want: backup, hint: "qm unlock"},
	}, func(t *testing.T, l lab, tc row) {
		for range tc.times {
			l.world.FailNext(tc.match, tc.message)
		}
		if tc.meanwhile != nil {
			time.AfterFunc(lockPause/2, func() { tc.meanwhile(t, l) })
		}
		start := time.Now()
		err := tc.do(t, l)
		wantError(t, err, tc.is, tc.want)
		must.Contain(t, "hints", strings.Join(fault.Hints(err), "\n"), tc.hint)
		must.Take(t, start, 0, lockTime+time.Minute)
	})
}

func TestSlots(t *testing.T) {
	t.Parallel()
	var s slots
	var release func()
	for _, host := range []string{"pve1", "pve2"} {
		for range slotsPerHost {
			release = must.Get(s.take(t.Context(), host))(t)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must.FailIs(t, must.Err(s.take(ended, "pve2")), context.Canceled)
	release()
	must.Get(s.take(t.Context(), "pve2"))(t)
}

// TestSlotsLimitWorkers creates many VMs at once, and shuts one down meanwhile.
func TestSlotsLimitWorkers(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		l.world.SetFirmware(nil) // nothing reacts to the power button
		must.Do(t, l.Start(t.Context(), l.read(t, 9011)))
		vm := l.read(t, 9011)
		shutdowns, end := context.WithCancel(t.Context())
		defer end()
		var wg sync.WaitGroup
		for range 2 * slotsPerHost {
			wg.Go(func() { must.Hold(t, l.Shutdown(shutdowns, vm, time.Minute) != nil, "it is off") })
		}
		time.Sleep(time.Second)
		most, stop := 0, make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				running := 0
				for _, task := range l.world.Tasks() {
					if task.Running && task.Type == "qmcreate" {
						running++
					}
				}
				most = max(most, running)
			}
		})
		start := time.Now()
		var creates sync.WaitGroup
		for i := range 3 * slotsPerHost {
			creates.Go(func() { must.Pass(t, l.CreateVM(t.Context(), "pve1", cluster.VMID(9100+i), nil)) })
		}
		creates.Wait()
		must.Take(t, start, 0, 30*time.Second) // the shutdowns do not delay them
		close(stop)
		end()
		wg.Wait()
		must.Equal(t, "at once", slotsPerHost, most)
	})
}

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
	err := c.do(t, l.lab)
	must.Hold(t, err == nil && c.done(l.lab), "done: %v, error %v", c.done(l.lab), err)
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

// on9011 makes a change of VM 9011 that needs nothing else.
func on9011(do func(*Client, context.Context, cluster.VM) error) func(*testing.T, lab) error {
	return func(t *testing.T, l lab) error { return do(l.Client, t.Context(), l.read(t, 9011)) }
}

// lostSwitches turn the VM and Proxmox HA on and off.
func lostSwitches() map[string]lostChange {
	running := func(l lab) bool { vm, err := l.world.LookupVM("pve1", 9011); return err == nil && vm.Running }
	start := func(t *testing.T, l lab) { must.Do(t, l.Start(t.Context(), l.read(t, 9011))) }
	resource := cluster.HAResource{VMID: 9011, State: "stopped", Settings: map[string]string{"max_restart": "2"}}
	return map[string]lostChange{
		"start": {do: on9011((*Client).Start), done: running, again: true},
		"stop":  {prepare: start, do: on9011((*Client).Stop), done: func(l lab) bool { return !running(l) }},
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
		"delete": {do: on9011((*Client).DeleteVM), done: func(l lab) bool { _, err := l.world.LookupVM("pve1", 9011); return err != nil }},
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
				must.Bubble(t, func(t *testing.T) {
					lossy := tc.in(t, w.loss)
					began := time.Now()
					err := tc.do(t, lossy.lab)
					done, lost := w.want(tc)
					must.Hold(t, errors.Is(err, cluster.ErrLostAnswer) == lost && (lost || err == nil),
						"error is %v; want a lost answer: %v", err, lost)
					must.Equal(t, "done", done, tc.done(lossy.lab))
					must.Take(t, began, 0, 5*time.Minute)
				})
			})
		}
	}
}

// TestLostAnswerOfAFailure: a worker fails whose name was never received. Its own
// error is returned, and nothing is sent again.
func TestLostAnswerOfAFailure(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLosing(t, loss{})
		l.world.FailNext("qmcreate", "no space left on device")
		l.armed.Store(true)
		err := l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"scsi0": "fast:1"})
		e, ok := errors.AsType[*api.TaskError](err)
		must.Hold(t, ok && strings.HasSuffix(e.Exit, "no space left on device") && !errors.Is(err, cluster.ErrLostAnswer) && errors.Is(err, api.ErrNoSpace),
			"error is %v", err)
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
			someoneElse, setting(map[string]string{"scsi1": "fast:2,serial=data-wk1,discard=on"}), cluster.ErrChanged,
		},
		"another configuration, by a worker": {
			func(t *testing.T, l lab) {
				_, err := l.world.SetConfigTask("recast@pve!roll", "pve1", world.ChangeRequest{ID: 9011, Set: map[string]string{"cores": "3"}})
				must.Do(t, err)
			},
			setting(map[string]string{"ide2": "none,media=cdrom"}, "scsi1"), cluster.ErrChanged,
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := newLosing(t, loss{before: true, then: tc.meanwhile})
		l.armed.Store(true)
		wantError(t, tc.do(t, l.lab), tc.is, "")
	})
}

// TestLostAnswerOfALateChange: a change arrives after we stopped waiting for its answer.
func TestLostAnswerOfALateChange(t *testing.T) {
	must.Bubbles(t, lostChanges(), func(t *testing.T, tc lostChange) { tc.wantDone(t, loss{late: 12 * time.Second}) })
}

// TestLostAnswerIsOvertaken: a change arrives just before its second request: that is refused, and the change is done.
func TestLostAnswerIsOvertaken(t *testing.T) {
	again := lostChanges()
	maps.DeleteFunc(again, func(_ string, tc lostChange) bool { return !tc.again })
	must.Bubbles(t, again, func(t *testing.T, tc lostChange) { tc.wantDone(t, loss{overtaken: true}) })
}

// TestLostAnswerRightAfterAnother: a change of the same kind and object ends just
// before; its task is not taken for that of the lost one.
func TestLostAnswerRightAfterAnother(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLosing(t, loss{before: true})
		must.Do(t, l.SetConfig(t.Context(), l.read(t, 9011), map[string]string{"scsi5": "fast:1"}, nil))
		vm := l.read(t, 9011)
		l.armed.Store(true)
		must.Do(t, l.SetConfig(t.Context(), vm, map[string]string{"scsi6": "fast:1"}, nil))
		must.Hold(t, l.read(t, 9011).Config["scsi6"] != "", "scsi6 is not there")
	})
}

// TestNothingCanBeLookedUp bounds the search after a lost answer.
func TestNothingCanBeLookedUp(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("POST /nodes/pve1/qemu", lost)
		pve1.On("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=qmcreate", lost)
		start := time.Now()
		must.FailIs(t, c.CreateVM(t.Context(), "pve1", 101, nil), cluster.ErrLostAnswer)
		must.Take(t, start, searchTime, searchTime+time.Minute)
		must.Equal(t, "sent", "[POST /nodes/pve1/qemu]", fmt.Sprint(changes(pve1.Requests())))
	})
}
