package pve

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
)

// TestOneLookAtManyVMs: what is kept in one place for all VMs, or for all of a host,
// is read once per look.
func TestOneLookAtManyVMs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		untied(pve1)
		var vms []cluster.VM
		var jobs, resources string
		for id := 101; id <= 140; id++ {
			for _, what := range []string{"/firewall/rules", "/firewall/options", "/firewall/aliases", "/firewall/ipset", "/snapshot"} {
				list := `[]`
				if what == "/firewall/options" {
					list = `{}`
				}
				pve1.On(fmt.Sprintf("GET /nodes/pve1/qemu/%d%s", id, what), data(list))
			}
			jobs += fmt.Sprintf(`{"id":"%d-0","guest":%d,"pid":%d},`, id, id, id)
			resources += fmt.Sprintf(`{"type":"qemu","vmid":%d,"node":"pve1","pool":"talos"},`, id)
			vms = append(vms, cluster.VM{ID: cluster.VMID(id), Host: "pve1", Config: map[string]string{"tags": "a"}})
		}
		list := func(rows string) route { return data("[" + rows[:len(rows)-1] + "]") }
		pve1.On("GET /cluster/replication", list(jobs))
		pve1.On("GET /nodes/pve1/replication", list(jobs))
		pve1.On("GET /cluster/backup", data(`[{"id":"nightly","pool":"talos","next-run":1}]`))
		pve1.On("GET /cluster/options", data(`{"allowed-tags":["b"]}`))
		pve1.On(listPath, list(resources))
		pve1.On(haList, data(`[]`))
		c := s.client(t, "pve1")
		for look := 1; look <= 2; look++ {
			for i, of := range c.TiesOf(t.Context(), vms) {
				if of.Err != nil || len(of.Busy) != 2 || len(of.Jobs) != 1 || len(of.Tags) != 1 {
					t.Fatalf("%s: %+v", vms[i], of)
				}
			}
			asked := map[string]int{}
			for _, request := range pve1.Requests() {
				asked[request]++
			}
			for request, n := range asked {
				if n != look {
					t.Errorf("%d looks asked %d times: %s", look, n, request)
				}
			}
		}
	})
}
