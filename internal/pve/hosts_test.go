package pve

import (
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
