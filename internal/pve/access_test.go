package pve

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

func TestStanding(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /access/permissions?path=%2Faccess", data(`{"/access":{"Sys.Audit":1}}`), data(`{"/access":{}}`))
		pve1.On("GET /access/permissions?path=%2Fvms", data(`{"/vms":{"VM.Audit":1}}`))
		pve1.On("GET /access/permissions?path=%2Fvms&userid=recast%40pve", data(`{"/vms":{"VM.Audit":"1","VM.Console":0}}`))
		pve1.On("GET /access/acl", data(`[{"path":"/vms","ugid":"recast@pve","roleid":"A","type":"user","propagate":"1"},
			{"path":"/vms","ugid":"recast@pve!roll","roleid":"A","type":"token","propagate":0},{"path":"/","ugid":"recast@pve!roll","roleid":"A","type":"token","propagate":1},
			{"path":"/vms","ugid":"recast@pve","roleid":"B","type":"user","propagate":0}]`))
		for _, want := range []cluster.Standing{
			{Token: cluster.Privileges{"VM.Audit": true}, User: cluster.Privileges{"VM.Audit": true, "VM.Console": false}, UserEntry: true, Whole: true},
			{Token: cluster.Privileges{"VM.Audit": true}}, // it may not see more
		} {
			got, err := c.Standing(t.Context(), []string{"/vms"})
			must(t, err)
			same(t, "standing", map[string]cluster.Standing{"/vms": want}, got)
		}
	})
}
