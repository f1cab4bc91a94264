package pve

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// on101 are pve1's answers about VM 101 for another host.
func on101(pve1 *fake, host, what string) {
	for _, path := range []string{"config", "pending", "status/current"} {
		pve1.On("GET /nodes/"+host+"/qemu/101/"+path, pve1.Answers("GET /nodes/pve1/qemu/101/"+path)...)
	}
	if what != "" {
		for _, path := range []string{"config", "pending", "status/current"} {
			pve1.On("GET /nodes/pve1/qemu/101/"+path, raw(what, ""))
		}
	}
}

// TestVMWhereLastSeen: a VM is read where it was last seen, and looked up if it is not
// there, may have moved, or was seen too long ago.
func TestVMWhereLastSeen(t *testing.T) {
	t.Parallel()
	moved := func(what string) func(pve1 *fake) {
		return func(pve1 *fake) {
			pve1.On(listPath, data(`[{"type":"qemu","vmid":101,"node":"pve2","status":"running"}]`))
			on101(pve1, "pve2", what)
		}
	}
	for name, tc := range map[string]struct {
		then    func(pve1 *fake) // after the first read
		later   time.Duration
		host    string
		listed  int // how often the second read asks for the list
		missing bool
	}{
		"there still":              {host: "pve1"},
		"long ago":                 {later: seenFor, host: "pve1", listed: 1},
		"migrated":                 {then: moved(noVM101), host: "pve2", listed: 1},
		"the host does not answer": {then: moved("595 No route to host"), host: "pve2", listed: 2},
		"it may not be read there": {then: moved("403 Permission check failed (/vms/101, VM.Audit)"), host: "pve2", listed: 1},
		"off there, on elsewhere": {then: func(pve1 *fake) {
			moved("")(pve1)
			pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"stopped","qmpstatus":"stopped"}`))
		}, host: "pve2", listed: 1},
		"the host has left the cluster": {then: moved("500 hostname lookup 'pve1' failed - failed to get address info for: pve1: Name or service not known"), host: "pve2", listed: 1},
		"migrated between two reads": {then: func(pve1 *fake) {
			moved("")(pve1)
			pve1.On("GET /nodes/pve1/qemu/101/status/current", raw(noVM101, ""))
		}, host: "pve2", listed: 1},
		"fenced, and shown by a host that was cut off": {then: moved(""), later: seenFor, host: "pve2", listed: 1},
		"deleted, and seen through its pool alone": {then: func(pve1 *fake) {
			pve1.On(listPath, data(`[]`))
			pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
			on101(pve1, "pve2", "403 Permission check failed (/vms/101, VM.Audit)")
		}, listed: 1, missing: true},
		"deleted": {then: func(pve1 *fake) {
			pve1.On(listPath, data(`[]`))
			pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
			on101(pve1, "pve2", noVM101)
		}, listed: 1, missing: true},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			vm101(pve1)
			_, err := c.VM(t.Context(), 101)
			must(t, err)
			before := len(pve1.Requests())
			if tc.then != nil {
				tc.then(pve1)
			}
			time.Sleep(tc.later)
			got, err := c.VM(t.Context(), 101)
			if errors.Is(err, cluster.ErrNotFound) != tc.missing || !tc.missing && err != nil {
				t.Fatal(err)
			}
			want := wantVM101Alone()
			want.Host = tc.host
			if !tc.missing {
				same(t, "VM", want, got)
			}
			listed := slices.DeleteFunc(pve1.Requests()[before:], func(r string) bool { return r != listPath })
			same(t, "how often the list was asked", tc.listed, len(listed))
		})
	}
}

// TestVMThatWasOff: what proves where a VM is that is off, the cluster's list, is asked for
// while the VM is read where it was seen. If it shows another host, the VM is read there.
func TestVMThatWasOff(t *testing.T) {
	t.Parallel()
	list := func(status, host string) string {
		return `[{"type":"qemu","vmid":101,"node":"` + host + `","name":"wk1","status":"` + status + `"}]`
	}
	for name, tc := range map[string]struct {
		list  string // of the second read
		nodes string // the state of pve1
		after func(pve1 *fake)
		host  string
		took  time.Duration // each answer takes a second
		away  bool
	}{
		"off there still":        {list: list("stopped", "pve1"), host: "pve1", took: time.Second},
		"on there by now":        {list: list("stopped", "pve1"), host: "pve1", took: time.Second, after: func(pve1 *fake) { vm101(pve1) }},
		"moved":                  {list: list("stopped", "pve2"), host: "pve2", took: 3 * time.Second},
		"no state, host online":  {list: list("unknown", "pve1"), nodes: "online", host: "pve1", took: 3 * time.Second},
		"no state, host offline": {list: list("unknown", "pve1"), nodes: "offline", away: true, took: 2 * time.Second},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			vm101(pve1)
			pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"stopped","qmpstatus":"stopped"}`))
			on101(pve1, "pve2", "")
			pve1.On(listPath, data(list("stopped", "pve1")))
			_, err := c.VM(t.Context(), 101)
			must(t, err)
			if tc.after != nil {
				tc.after(pve1)
			}
			pve1.On(listPath, data(tc.list))
			pve1.On("GET /nodes", data(`[{"node":"pve1","status":"`+tc.nodes+`"}]`))
			for _, path := range []string{listPath, "GET /nodes/pve1/qemu/101/pending", "GET /nodes/pve1/qemu/101/status/current", "GET /nodes/pve2/qemu/101/pending", "GET /nodes/pve2/qemu/101/status/current"} {
				pve1.On(path, after(time.Second, pve1.Answers(path)[0]))
			}
			began := time.Now()
			vm, err := c.VM(t.Context(), 101)
			if _, away := errors.AsType[*cluster.HostsAway](err); away != tc.away || !tc.away && err != nil {
				t.Fatal(err)
			}
			same(t, "host", tc.host, vm.Host)
			same(t, "how long it took", tc.took, time.Since(began))
			same(t, "on", tc.after != nil, vm.Running)
		})
	}
}

// TestVMWhoseHostIsUnknown: if the list has no state of a VM, its host may be
// unreachable, which the next read has to find out as well.
func TestVMWhoseHostIsUnknown(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On(listPath, data(`[{"type":"qemu","vmid":101,"node":"pve1","status":"unknown"}]`))
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"offline"}]`))
		for range 2 {
			vm, err := c.VM(t.Context(), 101)
			if _, away := errors.AsType[*cluster.HostsAway](err); !away {
				t.Errorf("read %v, error %v", vm, err)
			}
		}
	})
}

// TestVMWhereLastSeenUnanswered does not ask a host again that did not answer: that takes half a minute.
func TestVMWhereLastSeenUnanswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		vm101(pve1)
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
		c := s.client(t, "pve1")
		_, err := c.VM(t.Context(), 101)
		must(t, err)
		on101(pve1, "pve2", "595 No route to host")
		asked := func(c *Client) int {
			before := len(pve1.Requests())
			_, err := c.VM(t.Context(), 101)
			if _, away := errors.AsType[*cluster.HostsAway](err); !away {
				t.Errorf("error %v", err)
			}
			return len(slices.DeleteFunc(pve1.Requests()[before:], func(r string) bool { return !strings.Contains(r, "/qemu/101/") }))
		}
		had := asked(c)
		same(t, "requests, as of a new client", asked(s.client(t, "pve1")), had)
	})
}

// TestVMConfig asks only for the configuration, and never reports the VM as off.
func TestVMConfig(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"stopped","qmpstatus":"stopped"}`))
		for range 2 {
			got, err := c.VMConfig(t.Context(), 101)
			must(t, err)
			want := wantVM101Alone()
			want.QMP, want.HA, want.Running = "", false, true
			same(t, "VM", want, got)
		}
		if got := strings.Join(pve1.Requests(), " "); strings.Contains(got, "status/current") {
			t.Errorf("asked %s", got)
		}
	})
}

func TestPool(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		if pool, err := c.Pool(t.Context(), 101); err != nil || pool != "talos" {
			t.Errorf("pool %q, error %v", pool, err)
		}
		if pool, err := c.Pool(t.Context(), 102); !errors.Is(err, cluster.ErrNotFound) {
			t.Errorf("pool %q, error %v", pool, err)
		}
	})
}
