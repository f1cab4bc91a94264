package kube_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
)

const (
	behindMayastor = "/api/v1/namespaces/openebs/services/openebs-api-rest:8081/proxy"
	diskPoolsPath  = "/apis/openebs.io/v1beta2/diskpools"
	agentCore      = "/apis/apps/v1/namespaces/openebs/deployments"
)

// mayastorPages are those of a Mayastor without volumes, beside another engine of OpenEBS.
func mayastorPages() map[string]page {
	kinds := func(version, name, kind string) page {
		return page{200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"openebs.io/` + version + `","resources":[{"name":"` + name + `","kind":"` + kind + `"}]}`}
	}
	return map[string]page{
		"/apis": {200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"openebs.io","versions":[{"groupVersion":"openebs.io/v1alpha1","version":"v1alpha1"},` +
			`{"groupVersion":"openebs.io/v1beta2","version":"v1beta2"}]}]}`},
		"/apis/openebs.io/v1alpha1":    kinds("v1alpha1", "blockdevices", "BlockDevice"),
		"/apis/openebs.io/v1beta2":     kinds("v1beta2", "diskpools", "DiskPool"),
		diskPoolsPath:                  {200, `{"items":[{"metadata":{"name":"p"},"spec":{"node":"wk1"}}]}`},
		"/api/v1/services":             {200, `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"openebs-api-rest","namespace":"openebs"}}]}`},
		agentCore:                      {200, `{"kind":"DeploymentList","apiVersion":"apps/v1","items":[]}`},
		behindMayastor + "/v0/nodes":   {200, `[{"id":"wk1","state":{"status":"Online"}}]`},
		behindMayastor + "/v0/pools":   {200, `[]`},
		behindMayastor + "/v0/volumes": {200, `{"entries":[]}`},
	}
}

// TestReplicasOfMayastor: what its API does not say leaves all of its nodes unknown, and what recast may not read is an
// error that names the right.
func TestReplicasOfMayastor(t *testing.T) {
	t.Parallel()
	known := func(patience time.Duration) *replica.System {
		return &replica.System{
			Name: "Mayastor", Waits: "--faulted-child-wait-period", Patience: patience, Nodes: []replica.Node{{Name: "wk1"}},
			Unstuck: "turn on agents.ha.enabled of its chart, or move the pods that use it to the node",
		}
	}
	stuck := func(why string) *replica.System {
		s := known(10 * time.Minute)
		s.Stuck = why
		return s
	}
	const core = `{"name":"agent-core","args":["--store=x","%s"]}`
	deployment := func(containers string) page {
		return page{200, `{"kind":"DeploymentList","apiVersion":"apps/v1","items":[{"spec":{"template":{"spec":{"containers":[` + containers + `]}}}}]}`}
	}
	told := func(arg string) page { return deployment(fmt.Sprintf(core, arg) + `,{"name":"agent-ha-cluster"}`) }
	checkReplicas(t, mayastorPages, map[string]replicasCase{
		"fine":                       {path: agentCore, page: told("-x"), want: known(10 * time.Minute)},
		"HA is off":                  {path: agentCore, page: told("--disable-ha"), want: stuck("its HA agents are off (--disable-ha)")},
		"it has no HA agent":         {path: agentCore, page: deployment(fmt.Sprintf(core, "-x")), want: stuck("there is no Deployment with a container agent-ha-cluster")},
		"it has no agent-core":       {want: stuck("there is no Deployment with a container agent-ha-cluster")},
		"it is told to wait":         {path: agentCore, page: told("--faulted-child-wait-period=1h 30m"), want: known(90 * time.Minute)},
		"it is told something else":  {path: agentCore, page: told("--faulted-child-wait-period=1week"), want: known(0)},
		"another engine":             {path: "/apis/openebs.io/v1beta2", page: page{200, `{"kind":"APIResourceList","apiVersion":"v1","resources":[]}`}},
		"no pool":                    {path: diskPoolsPath, page: page{200, `{"items":[]}`}, want: &replica.System{Name: "Mayastor", Waits: "--faulted-child-wait-period"}},
		"its control plane is away":  {path: behindMayastor + "/v0/nodes", page: page{503, `{"details":"x","message":"y","kind":"Unavailable"}`}, want: &replica.System{Name: "Mayastor", Waits: "--faulted-child-wait-period", Away: "no usable answer from service openebs/openebs-api-rest: status 503 for /v0/nodes", Holders: []string{"wk1"}}},
		"another answer":             {path: behindMayastor + "/v0/nodes", page: page{200, `{"nodes":[]}`}, fails: "ask service openebs/openebs-api-rest for /v0/nodes: read the answer"},
		"pools forbidden":            {path: diskPoolsPath, page: forbidden(t, "diskpools", "openebs.io"), fails: `cannot list resource "diskpools"`},
		"services forbidden":         {path: "/api/v1/services", page: forbidden(t, "services", ""), fails: `cannot list resource "services"`},
		"services/proxy forbidden":   {path: behindMayastor + "/v0/volumes", page: forbidden(t, "services/proxy", ""), fails: `cannot list resource "services/proxy"`},
		"deployments forbidden":      {path: agentCore, page: forbidden(t, "deployments", "apps"), fails: `cannot list resource "deployments"`},
		"the group's kinds are gone": {path: "/apis/openebs.io/v1alpha1", page: page{404, "404 page not found"}, fails: "list resources of openebs.io/v1alpha1"},
	})
}
