package pve

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

func TestHosts(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /cluster/status", data(`[{"type":"cluster","name":"c","quorate":1},{"type":"node","name":"pve1","online":1,"local":1},{"type":"node","name":"pve2","online":0,"local":0}]`))
		pve1.On("GET /nodes/pve1/version", data(`{"version":"8.4.1","release":"8.4"}`))
		pve1.On("GET /nodes/pve1/time", data(`{"time":1700000000,"localtime":1700003600,"timezone":"Europe/Berlin"}`))
		pve1.On("GET /nodes/pve1/status", data(`{"rootfs":{"total":100,"used":10,"avail":90,"free":90}}`))
		pve1.On("GET /nodes/pve1/disks/lvmthin", data(`[{"lv":"data","vg":"pve","lv_size":100,"used":"50","metadata_size":10,"metadata_used":1}]`))
		got, err := c.Hosts(t.Context())
		must(t, err)
		want := []cluster.Host{
			{
				Name: "pve1", Online: true, Entry: true, Version: "8.4.1", Clock: time.Unix(1700000000, 0), Asked: time.Now(), SpoolFree: 90,
				ThinPools: []cluster.ThinPool{{VG: "pve", Name: "data", Size: 100, Used: 50, MetaSize: 10, MetaUsed: 1}},
			},
			{Name: "pve2"},
		}
		same(t, "hosts", want, got, cmpopts.EquateApproxTime(time.Second))
	})
}

func TestHostsOfATokenWithNothing(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		denied := raw("403 Permission check failed (/, Sys.Audit)", "")
		pve1.On("GET /cluster/status", denied)
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
		pve1.On("GET /nodes/pve1/version", data(`{"version":"9.2.11"}`))
		for _, what := range []string{"time", "status", "disks/lvmthin"} {
			pve1.On("GET /nodes/pve1/"+what, denied)
		}
		got, err := c.Hosts(t.Context())
		if err != nil || len(got) != 1 || got[0].Version != "9.2.11" || !got[0].Online {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, err := range append(got[0].Errs, got[0].ErrPools) {
			if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "Sys.Audit") {
				t.Errorf("%v", err)
			}
		}
		if len(got[0].Errs) != 2 {
			t.Errorf("errors %v", got[0].Errs)
		}
	})
}

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
