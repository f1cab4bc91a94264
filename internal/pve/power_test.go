package pve

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestPower(t *testing.T) {
	vm := cluster.VM{ID: 101, Host: "pve1"}
	start := func(t *testing.T, c *Client) error { return c.Start(t.Context(), vm) }
	shutdown := func(t *testing.T, c *Client) error { return c.Shutdown(t.Context(), vm, 1500*time.Millisecond) }
	stop := func(t *testing.T, c *Client) error { return c.Stop(t.Context(), vm) }
	state := func(status, qmp string) route { return data(`{"status":"` + status + `","qmpstatus":"` + qmp + `"}`) }
	type row struct {
		do     func(*testing.T, *Client) error
		what   string
		params map[string]string
		task   route
		states []route
		want   string
	}
	onEachNode(t, map[string]row{
		"start":                           {start, "start", map[string]string{}, stopped("OK"), []route{state("running", "prelaunch"), state("running", "running")}, "<nil>"},
		"start by HA":                     {start, "start", map[string]string{}, stopped("OK"), []route{state("stopped", "stopped"), state("stopped", "stopped"), state("running", "running")}, "<nil>"},
		"start what runs":                 {start, "start", map[string]string{}, stopped("VM 101 already running"), []route{state("running", "running")}, "<nil>"},
		"start fails":                     {start, "start", map[string]string{}, stopped("volume 'isos:iso/x.iso' does not exist"), nil, "task qmdestroy 101 on pve1: volume 'isos:iso/x.iso' does not exist"},
		"start into an error":             {start, "start", map[string]string{}, stopped("OK"), []route{state("running", "io-error")}, "VM 101 running: running, io-error"},
		"start stays paused":              {start, "start", map[string]string{}, stopped("OK"), []route{state("running", "paused")}, "VM 101 running: gave up after 2m0s; last seen: running, paused: context deadline exceeded"},
		"shutdown":                        {shutdown, "shutdown", map[string]string{"timeout": "2", "forceStop": "0"}, stopped("OK"), []route{state("running", "running"), state("stopped", "stopped")}, "<nil>"},
		"shutdown is not followed":        {shutdown, "shutdown", map[string]string{"timeout": "2", "forceStop": "0"}, stopped("VM quit/powerdown failed - got timeout"), nil, "task qmdestroy 101 on pve1: VM quit/powerdown failed - got timeout"},
		"stop":                            {stop, "stop", map[string]string{}, stopped("OK"), []route{state("stopped", "stopped")}, "<nil>"},
		"stop, qmp is no longer reported": {stop, "stop", map[string]string{}, stopped("OK"), []route{data(`{"status":"stopped"}`)}, "<nil>"},
		"stop of a VM that is gone":       {stop, "stop", map[string]string{}, stopped("OK"), []route{raw(noVM101, "")}, "VM 101 stopped: GET /nodes/pve1/qemu/101/status/current: " + noVM101},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		var params map[string]string
		pve1.On("POST /nodes/pve1/qemu/101/status/"+tc.what, sent(&params, data(`"`+testUPID+`"`)))
		pve1.On(statusPath, tc.task)
		pve1.On(logPath, data(`[]`))
		pve1.On("GET /nodes/pve1/qemu/101/status/current", tc.states...)
		must.Equal(t, "error", tc.want, fmt.Sprint(tc.do(t, c)))
		must.Equal(t, "parameters", tc.params, params)
	})
}

// TestShutdownByHA has a guest that needs most of its grace period: the task of a VM
// that Proxmox HA manages ends at once.
func TestShutdownByHA(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		began := time.Now()
		pve1.On("POST /nodes/pve1/qemu/101/status/shutdown", data(`"`+testUPID+`"`))
		pve1.On(statusPath, stopped("OK"))
		pve1.On("GET /nodes/pve1/qemu/101/status/current", func(w http.ResponseWriter, r *http.Request) {
			state := "running"
			if time.Since(began) > 4*time.Minute {
				state = "stopped"
			}
			data(`{"status":"`+state+`","qmpstatus":"`+state+`","ha":{"managed":1}}`)(w, r)
		})
		must.Do(t, c.Shutdown(t.Context(), cluster.VM{ID: 101, Host: "pve1", HA: true}, 5*time.Minute))
	})
}

// TestUnansweredIsReported: the caller of a power change learns whether an unanswered
// request may still be carried out, although the VM is as wanted.
func TestUnansweredIsReported(t *testing.T) {
	start := func(ctx context.Context, t *testing.T, l lab) error { return l.Start(ctx, l.read(t, 9011)) }
	type row struct {
		loss  loss
		on    bool
		do    func(context.Context, *testing.T, lab) error
		noted bool
	}
	must.Bubbles(t, map[string]row{
		"its task was found":         {do: start},
		"it was sent twice":          {loss: loss{before: true}, do: start, noted: true},
		"it is unknown who did it":   {loss: loss{before: true}, on: true, noted: true, do: shutdownMeanwhile},
		"its task was found, it ran": {on: true, do: shutdownMeanwhile},
	}, func(t *testing.T, c row) {
		l := newLosing(t, c.loss)
		if c.on {
			must.Do(t, l.Start(t.Context(), l.read(t, 9011)))
		}
		l.armed.Store(true)
		ctx, unanswered := cluster.WithUnanswered(t.Context())
		err := c.do(ctx, t, l.lab)
		must.Hold(t, err == nil && unanswered() == c.noted, "error %v; noted: %t, want %t", err, unanswered(), c.noted)
	})
}

// shutdownMeanwhile shuts down a VM that switches itself off at the same time.
func shutdownMeanwhile(ctx context.Context, t *testing.T, l lab) error {
	time.AfterFunc(2*time.Second, func() { _ = l.world.PowerOff(9011) })
	return l.Shutdown(ctx, l.read(t, 9011), time.Minute)
}

const (
	haGet    = "GET /cluster/ha/resources/vm:101"
	haDelete = "DELETE /cluster/ha/resources/vm:101"
	haPurge  = haDelete + "?purge=0"
	haStatus = "GET /cluster/ha/status/current"
	haRules  = "GET /cluster/ha/rules"
)

var (
	inHA       = data(`{"sid":"vm:101","type":"vm","digest":"d","state":"started","max_restart":2}`)
	noHA       = raw("500 no such resource 'vm:101'", "")
	haListed   = data(`[{"type":"quorum","id":"quorum"},{"type":"service","sid":"vm:1010","state":"started"},{"type":"service","sid":"vm:101","state":"deleting"}]`)
	haUnlisted = data(`[{"type":"quorum","id":"quorum"},{"type":"service","sid":"vm:1010","state":"started"}]`)
	noPurge    = raw("400 Parameter verification failed.",
		`{"errors":{"purge":"property is not defined in schema and the schema does not allow additional properties"},"data":null}`)
)

func TestRemoveHA(t *testing.T) {
	type row struct {
		answers  routes
		want     string
		requests []string
	}
	onEachNode(t, map[string]row{
		"removed": {
			routes{haGet: {inHA}, haPurge: {data("null")}, haStatus: {haListed, haListed, haUnlisted}},
			"<nil>",
			[]string{haGet, haPurge, haStatus, haStatus, haStatus},
		},
		"not there": {routes{haGet: {noHA}, haStatus: {haUnlisted}}, "<nil>", []string{haGet, haStatus}},
		"removed before, still looked after": {
			routes{haGet: {noHA}, haStatus: {haListed, haUnlisted}},
			"<nil>",
			[]string{haGet, haStatus, haStatus},
		},
		"someone else was faster": {
			routes{haGet: {inHA}, haPurge: {raw("500 cannot delete service 'vm:101', not HA managed!", "")}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haPurge, haStatus},
		},
		"may not": {
			routes{haGet: {inHA}, haPurge: {raw("403 Permission check failed (/, Sys.Console)", "")}},
			"DELETE /cluster/ha/resources/vm:101: 403 Permission check failed (/, Sys.Console)",
			[]string{haGet, haPurge},
		},
		"no quorum": {
			routes{haGet: {inHA}, haPurge: {raw("500 delete resource failed: cfs-lock 'domain-ha' error: no quorum!", "")}},
			"DELETE /cluster/ha/resources/vm:101: 500 delete resource failed: cfs-lock 'domain-ha' error: no quorum!",
			[]string{haGet, haPurge},
		},
		"may not look": {
			routes{haGet: {raw("403 Permission check failed (/, Sys.Audit)", "")}},
			"GET /cluster/ha/resources/vm:101: 403 Permission check failed (/, Sys.Audit)",
			[]string{haGet},
		},
		"a fault in between": {
			routes{haGet: {noHA}, haStatus: {raw("500 boom", "")}},
			"Proxmox HA releases vm:101: GET /cluster/ha/status/current: 500 boom",
			[]string{haGet, haStatus},
		},
		"Proxmox VE 8 has no rules": {
			routes{haGet: {inHA}, haPurge: {noPurge}, haRules: {raw("501 Method 'GET /cluster/ha/rules' not implemented", "")}, haDelete: {data("null")}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haPurge, haRules, haDelete, haStatus},
		},
		"no purge, and no rule names it": {
			routes{haGet: {inHA}, haPurge: {noPurge}, haRules: {data(`[{"rule":"r1","resources":"vm:1010,vm:10"}]`)}, haDelete: {data("null")}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haPurge, haRules, haDelete, haStatus},
		},
		"no purge, but a rule": {
			routes{haGet: {inHA}, haPurge: {noPurge}, haRules: {data(`[{"rule":"apart","resources":"vm:100,vm:101"}]`)}},
			"HA rules name vm:101 (apart), and this Proxmox VE would change them when the resource is removed",
			[]string{haGet, haPurge, haRules},
		},
		"no purge, rules unreadable": {
			routes{haGet: {inHA}, haPurge: {noPurge}, haRules: {raw("500 boom", "")}},
			"GET /cluster/ha/rules: 500 boom",
			[]string{haGet, haPurge, haRules},
		},
		"for ever": {
			routes{haGet: {noHA}, haStatus: {haListed}},
			"Proxmox HA releases vm:101: gave up after 2m0s; last seen: deleting: context deadline exceeded", nil,
		},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		for request, answers := range tc.answers {
			pve1.On(request, answers...)
		}
		must.Equal(t, "error", tc.want, fmt.Sprint(c.RemoveHA(t.Context(), 101)))
		if tc.requests != nil {
			must.Equal(t, "requests", tc.requests, pve1.Requests())
		}
	})
}

func TestRemoveHAWithoutAnAnswer(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On(haGet, inHA)
		pve1.On(haPurge, lost)
		wantError(t, c.RemoveHA(t.Context(), 101), cluster.ErrLostAnswer, "")
	})
}

func TestAddHA(t *testing.T) {
	const post = "POST /cluster/ha/resources"
	was := cluster.HAResource{VMID: 101, State: "started", Settings: map[string]string{"max_restart": "2"}}
	type row struct {
		want      cluster.HAResource
		get, post route
		err       string
		sent      map[string]string
		requests  []string
	}
	onEachNode(t, map[string]row{
		"made": {
			want: cluster.HAResource{VMID: 101, State: "stopped", Settings: map[string]string{"max_restart": "0", "comment": "two words", "failback": "0", "group": "rack1"}},
			get:  noHA, post: data("null"), err: "<nil>",
			sent:     map[string]string{"sid": "vm:101", "state": "stopped", "max_restart": "0", "comment": "two words", "failback": "0", "group": "rack1"},
			requests: []string{haGet, post, haStatus, haStatus},
		},
		"made without a setting": {
			want: cluster.HAResource{VMID: 101}, get: noHA, post: data("null"), err: "<nil>",
			sent: map[string]string{"sid": "vm:101", "state": "started"}, requests: []string{haGet, post, haStatus, haStatus},
		},
		"there": {want: was, get: inHA, err: "<nil>", requests: []string{haGet}},
		"there, by the old state": {
			want: was, get: data(`{"sid":"vm:101","type":"vm","state":"enabled","max_restart":"2"}`), err: "<nil>", requests: []string{haGet},
		},
		"there, otherwise": {
			want: cluster.HAResource{VMID: 101, State: "stopped", Settings: map[string]string{"max_restart": "1", "comment": "c"}},
			get:  inHA, requests: []string{haGet},
			err: `vm:101 is in Proxmox HA already with other settings: comment is "", not "c", max_restart is "2", not "1", state is "started", not "stopped"`,
		},
		"there with more": {
			want: cluster.HAResource{VMID: 101, State: "started"}, get: inHA, requests: []string{haGet},
			err: `vm:101 is in Proxmox HA already with other settings: max_restart is "2", not ""`,
		},
		"made by someone else meanwhile": {
			want: was, get: noHA, post: raw("500 create resource failed: resource ID 'vm:101' already defined", ""),
			err:  "POST /cluster/ha/resources: 500 create resource failed: resource ID 'vm:101' already defined",
			sent: map[string]string{"sid": "vm:101", "state": "started", "max_restart": "2"}, requests: []string{haGet, post},
		},
		"may not": {
			want: was, get: noHA, post: raw("403 Permission check failed (/, Sys.Console)", ""),
			err:  "POST /cluster/ha/resources: 403 Permission check failed (/, Sys.Console)",
			sent: map[string]string{"sid": "vm:101", "state": "started", "max_restart": "2"}, requests: []string{haGet, post},
		},
		"may not look": {
			want: was, get: raw("403 Permission check failed (/, Sys.Audit)", ""),
			err: "GET /cluster/ha/resources/vm:101: 403 Permission check failed (/, Sys.Audit)", requests: []string{haGet},
		},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		var params map[string]string
		pve1.On(haGet, tc.get)
		pve1.On(post, sent(&params, func(w http.ResponseWriter, r *http.Request) { tc.post(w, r) }))
		pve1.On(haStatus, haUnlisted, haListed)
		err := c.AddHA(t.Context(), tc.want)
		must.Equal(t, "error", tc.err, fmt.Sprint(err))
		must.Hold(t, err == nil || tc.post != nil || len(fault.Hints(err)) == 1, "hints %q", fault.Hints(err))
		must.Equal(t, "parameters", tc.sent, params)
		must.Equal(t, "requests", tc.requests, pve1.Requests())
	})
}

func TestMigration(t *testing.T) {
	type row struct {
		config  map[string]string
		running bool
		want    cluster.Migration
	}
	inEachLab(t, map[string]row{
		"shared":      {map[string]string{"scsi0": "pool:1", "ide2": "none,media=cdrom"}, true, cluster.Migration{Allowed: true}},
		"local disks": {map[string]string{"scsi0": "pool:1", "scsi1": "fast:1", "unused0": "fast:9031/vm-9031-disk-0.raw"}, false, cluster.Migration{Allowed: true, LocalDisks: []string{"fast:9031/vm-9031-disk-0.raw"}}},
		"an ISO":      {map[string]string{"ide2": "isolated:iso/a.iso,media=cdrom"}, false, cluster.Migration{Allowed: true, LocalDisks: []string{"isolated:iso/a.iso"}}},
		"storage":     {map[string]string{"scsi0": "here:1"}, false, cluster.Migration{Lacks: []string{"storage here"}}},
		"device":      {map[string]string{"hostpci0": "0000:01:00.0"}, false, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}, WhileOff: []string{"hostpci0"}}},
		"mapped":      {map[string]string{"hostpci0": "mapping=gpu"}, true, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}}},
		"not there":   {map[string]string{"hostpci0": "mapping=nic"}, false, cluster.Migration{Lacks: []string{"what is mapped for hostpci0"}}},
	}, func(t *testing.T, l lab, tc row) {
		l.may("VM.Migrate")
		l.world.AddStorage(world.Storage{ID: "pool", Type: "rbd", Shared: true, Content: []string{"images"}})
		l.world.AddStorage(world.Storage{ID: "isolated", Type: "dir", Content: []string{"iso"}})
		must.Do(t, l.world.AddISO("isolated", "pve1", "a.iso", []byte("iso")))
		l.world.AddStorage(world.Storage{ID: "here", Type: "rbd", Shared: true, Content: []string{"images"}, Hosts: []string{"pve1"}})
		l.world.AddMapping("pci", "gpu", "pve1", "pve2")
		l.world.AddMapping("pci", "nic", "pve1")
		must.Do(t, l.world.DefineVM("pve1", 9031, tc.config, nil))
		if tc.running {
			must.Do(t, l.world.PowerOn(9031))
		}
		got := must.Get(l.Migration(t.Context(), l.read(t, 9031), "pve2"))(t)
		must.Equal(t, "migration", tc.want, got, cmpopts.EquateEmpty())
	})
}

// A host that Proxmox does not list is refused, except if Proxmox lists none: before 8.4 it did not for a VM that runs.
func TestMigrationOfAnOlderProxmox(t *testing.T) {
	type row struct {
		answer  string
		allowed bool
	}
	onEachNode(t, map[string]row{
		"none listed": {`{"running":1,"local_disks":[],"local_resources":[]}`, true},
		"empty":       {`{"running":1,"local_disks":[],"local_resources":[],"allowed_nodes":[]}`, false},
		"another":     {`{"running":0,"local_disks":[],"local_resources":[],"allowed_nodes":["pve3"],"not_allowed_nodes":[]}`, false},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("GET /nodes/pve1/qemu/101/migrate?target=pve2", data(tc.answer))
		m := must.Get(c.Migration(t.Context(), cluster.VM{ID: 101, Host: "pve1"}, "pve2"))(t)
		must.Equal(t, "allowed", tc.allowed, m.Allowed)
	})
}

func TestMigrate(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		vm := l.read(t, 9011)
		err := l.Migrate(t.Context(), vm, "pve2")
		must.Hold(t, api.IsForbidden(err), "without VM.Migrate: %v", err)
		must.FailAs(t, must.Err(l.Migration(t.Context(), vm, "pve2")), fault.Refused)
		l.may("VM.Migrate")
		l.world.AddStorage(world.Storage{ID: "pool", Type: "rbd", Shared: true, Content: []string{"images"}})
		must.Do(t, l.world.DefineVM("pve1", 9031, map[string]string{"scsi0": "pool:1"}, nil))
		must.Do(t, l.world.PowerOn(9031))
		for _, to := range []string{"pve2", "pve1"} {
			must.Do(t, l.Migrate(t.Context(), l.read(t, 9031), to))
			now := l.read(t, 9031)
			must.Equal(t, "moved", []any{to, true, ""}, []any{now.Host, now.Running, now.Lock})
		}
		must.Do(t, l.AddHA(t.Context(), cluster.HAResource{VMID: 9031, State: "started"}))
		must.Equal(t, "kind for a VM under HA", fault.Refused, fault.KindOf(l.Migrate(t.Context(), l.read(t, 9031), "pve2")))
		must.Do(t, l.world.PowerOn(9011))
		must.Hold(t, l.Migrate(t.Context(), l.read(t, 9011), "pve2") != nil, "a running VM with local disks was migrated")
		now := l.read(t, 9011)
		must.Equal(t, "after a refused migration", []any{"pve1", true, ""}, []any{now.Host, now.Running, now.Lock})
	})
}
