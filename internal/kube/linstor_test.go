package kube_test

import (
	"testing"

	"github.com/recast-sh/recast/cluster/replica"
)

const (
	behindLINSTOR = "/api/v1/namespaces/piraeus-datastore/services/linstor-controller:3370/proxy"
	piraeusV1     = "/apis/piraeus.io/v1/"
)

// piraeusPages are those of a LINSTOR without volumes, with a satellite on wk1.
func piraeusPages() map[string]page {
	return map[string]page{
		"/apis":                                     {200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"piraeus.io","versions":[{"groupVersion":"piraeus.io/v1","version":"v1"}]}]}`},
		piraeusV1 + "linstorclusters":               {200, `{"items":[{"metadata":{"name":"linstorcluster"},"spec":{}}]}`},
		piraeusV1 + "linstorsatellites":             {200, `{"items":[{"metadata":{"name":"wk1"}}]}`},
		"/api/v1/services":                          {200, `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"linstor-controller","namespace":"piraeus-datastore"}}]}`},
		behindLINSTOR + "/v1/nodes":                 {200, `[{"name":"wk1","connection_status":"ONLINE"}]`},
		behindLINSTOR + "/v1/view/resources":        {200, `[]`},
		behindLINSTOR + "/v1/resource-definitions":  {200, `[]`},
		behindLINSTOR + "/v1/resource-groups":       {200, `[]`},
		behindLINSTOR + "/v1/controller/properties": {200, `{}`},
	}
}

// TestReplicasOfLINSTOR: what its controller does not say leaves all of its nodes unknown, and what recast may not read
// is an error that names the right.
func TestReplicasOfLINSTOR(t *testing.T) {
	t.Parallel()
	known := &replica.System{
		Name: "LINSTOR", Waits: "DrbdOptions/AutoEvictAfterTime", Holds: true, Evicts: true,
		Remedy: "Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration",
		Nodes:  []replica.Node{{Name: "wk1", Patience: replica.Forever}},
	}
	away := func(why string) *replica.System {
		return &replica.System{Name: "LINSTOR", Away: why, Holders: []string{"wk1"}}
	}
	const from = "no usable answer from service piraeus-datastore/linstor-controller: "
	unavailable := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,"message":"no endpoints available for service \"linstor-controller\""}`
	gone := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"services \"linstor-controller\" not found","details":{"name":"linstor-controller","kind":"services"}}`
	checkReplicas(t, piraeusPages, map[string]replicasCase{
		"fine":                     {want: known},
		"no cluster":               {path: piraeusV1 + "linstorclusters", page: page{200, `{"items":[]}`}, want: &replica.System{Name: "LINSTOR"}},
		"no Service":               {path: "/api/v1/services", page: page{200, `{"kind":"ServiceList","apiVersion":"v1","items":[]}`}, want: away("there is no Service with app.kubernetes.io/component=linstor-controller")},
		"no pod":                   {path: behindLINSTOR + "/v1/nodes", page: page{503, unavailable}, want: away(from + `no endpoints available for service "linstor-controller"`)},
		"no pod any more":          {path: behindLINSTOR + "/v1/resource-groups", page: page{503, unavailable}, want: away(from + `no endpoints available for service "linstor-controller"`)},
		"no Service any more":      {path: behindLINSTOR + "/v1/nodes", page: page{404, gone}, want: away(from + `services "linstor-controller" not found`)},
		"an error of LINSTOR":      {path: behindLINSTOR + "/v1/nodes", page: page{500, `[{"ret_code":-1,"message":"broken"}]`}, want: away(from + "status 500 for /v1/nodes")},
		"a token is asked for":     {path: behindLINSTOR + "/v1/nodes", page: page{401, `[{"ret_code":-1,"message":"Unauthorized"}]`}, want: away(from + "status 401 for /v1/nodes")},
		"no such path":             {path: behindLINSTOR + "/v1/nodes", page: page{404, `404`}, want: away(from + "status 404 for /v1/nodes")},
		"another answer":           {path: behindLINSTOR + "/v1/nodes", page: page{200, `{"nodes":[]}`}, fails: "ask service piraeus-datastore/linstor-controller for /v1/nodes: read the answer"},
		"clusters forbidden":       {path: piraeusV1 + "linstorclusters", page: forbidden(t, "linstorclusters", "piraeus.io"), fails: `cannot list resource "linstorclusters"`},
		"services forbidden":       {path: "/api/v1/services", page: forbidden(t, "services", ""), fails: `cannot list resource "services"`},
		"services/proxy forbidden": {path: behindLINSTOR + "/v1/nodes", page: forbidden(t, "services/proxy", ""), fails: `cannot list resource "services/proxy"`},
	})
}
