package pve

import (
	"errors"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// threeHosts is pve1 with VM 101, for which it answers itself, and pve2, of which pve1 knows two VMs.
func threeHosts(pve1 *fake, pve2 string) {
	vm101(pve1)
	pve1.On(listPath, data(`[{"type":"qemu","vmid":202,"node":"pve2","status":"unknown"},
		{"type":"qemu","vmid":101,"node":"pve1","name":"wk1","status":"running","pool":"talos","hastate":"started"},
		{"type":"qemu","vmid":201,"node":"pve2","name":"wk2","status":"running"}]`))
	pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"`+pve2+`"},{"node":"pve3","status":"offline"}]`))
}

func awayOn(why string) cluster.HostsAway {
	return cluster.HostsAway{
		Hosts: []cluster.AwayHost{{Name: "pve2", Why: why}},
		VMs:   []cluster.VM{{ID: 201, Name: "wk2", Host: "pve2", Running: true}, {ID: 202, Host: "pve2"}},
	}
}

func TestVMsOfHostsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	refused := raw("595 Connection refused", "")
	cases := map[string]struct {
		state   string
		prepare func(pve1 *fake)
		want    cluster.HostsAway
		within  time.Duration
	}{
		"offline": {"offline", func(*fake) {}, awayOn("is offline"), 0},
		"its pveproxy is down": {"online", func(pve1 *fake) {
			pve1.On("GET /nodes/pve2/qemu/201/pending", refused)
			pve1.On("GET /nodes/pve2/qemu/202/pending", refused)
		}, awayOn("does not answer (595 Connection refused)"), 5 * time.Second},
		"it went down while it was asked": {"online", func(pve1 *fake) {
			late := after(30*time.Second, raw("595 Connection timed out", ""))
			pve1.On("GET /nodes/pve2/qemu/201/pending", late)
			pve1.On("GET /nodes/pve2/qemu/202/pending", late)
		}, awayOn("does not answer (595 Connection timed out)"), 2 * time.Minute},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			threeHosts(pve1, tc.state)
			tc.prepare(pve1)
			began := time.Now()
			vms, err := c.VMs(t.Context())
			away, ok := errors.AsType[*cluster.HostsAway](err)
			if !ok || len(fault.Hints(err)) == 0 {
				t.Fatalf("err = %v, hints %q", err, fault.Hints(err))
			}
			same(t, "hosts", tc.want, *away)
			same(t, "VMs", []cluster.VM{wantVM101}, vms)
			if took := time.Since(began); took > tc.within {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestUnreachableHostWithoutVMs: nothing relevant can be on it.
func TestUnreachableHostWithoutVMs(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"offline"}]`))
		vms, err := c.VMs(t.Context())
		must(t, err)
		same(t, "VMs", []cluster.VM{wantVM101}, vms)
	})
}

func TestVMOnAHostThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		id     cluster.VMID
		state  string
		answer route // for the VM; nil: nobody may ask
		want   string
		within time.Duration
	}{
		"known to be offline": {202, "offline", nil, "find VM 202: Proxmox host pve2 is offline, so VM 202 can't be read", 0},
		"found to be offline": {201, "offline", raw("595 No route to host", ""), "find VM 201: Proxmox host pve2 is offline, so VM 201 can't be read", 5 * time.Second},
		"does not answer":     {202, "online", raw("595 Connection refused", ""), "find VM 202: Proxmox host pve2 does not answer (595 Connection refused), so VM 202 can't be read", 5 * time.Second},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			threeHosts(pve1, tc.state)
			if tc.answer != nil {
				pve1.On("GET /nodes/pve2/qemu/201/pending", tc.answer)
				pve1.On("GET /nodes/pve2/qemu/202/pending", tc.answer)
			}
			began := time.Now()
			_, err := c.VM(t.Context(), tc.id)
			if err == nil || err.Error() != tc.want || errors.Is(err, cluster.ErrNotFound) || len(fault.Hints(err)) == 0 {
				t.Errorf("err = %v, want %s; hints %q", err, tc.want, fault.Hints(err))
			}
			if took := time.Since(began); took > tc.within {
				t.Errorf("it took %s", took)
			}
		})
	}
}
