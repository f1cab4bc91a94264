package pve

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

const (
	haGet    = "GET /cluster/ha/resources/vm:101"
	haDelete = "DELETE /cluster/ha/resources/vm:101"
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

// removal is one way in which a VM is removed from HA.
type removal struct {
	answers  map[string][]route
	want     string
	requests []string
}

func testRemoveHA(t *testing.T, cases map[string]removal) {
	t.Helper()
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			for request, answers := range tc.answers {
				pve1.On(request, answers...)
			}
			same(t, "error", tc.want, fmt.Sprint(c.RemoveHA(t.Context(), 101)))
			same(t, "requests", tc.requests, pve1.Requests())
		})
	}
}

func TestRemoveHA(t *testing.T) {
	t.Parallel()
	testRemoveHA(t, map[string]removal{
		"removed": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {data("null")}, haStatus: {haListed, haListed, haUnlisted}},
			"<nil>",
			[]string{haGet, haDelete + "?purge=0", haStatus, haStatus, haStatus},
		},
		"not there": {
			map[string][]route{haGet: {noHA}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haStatus},
		},
		"removed before, still looked after": {
			map[string][]route{haGet: {noHA}, haStatus: {haListed, haUnlisted}},
			"<nil>",
			[]string{haGet, haStatus, haStatus},
		},
		"someone else was faster": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {raw("500 cannot delete service 'vm:101', not HA managed!", "")}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haDelete + "?purge=0", haStatus},
		},
		"may not": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {raw("403 Permission check failed (/, Sys.Console)", "")}},
			"DELETE /cluster/ha/resources/vm:101: 403 Permission check failed (/, Sys.Console)",
			[]string{haGet, haDelete + "?purge=0"},
		},
		"no quorum": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {raw("500 delete resource failed: cfs-lock 'domain-ha' error: no quorum!", "")}},
			"DELETE /cluster/ha/resources/vm:101: 500 delete resource failed: cfs-lock 'domain-ha' error: no quorum!",
			[]string{haGet, haDelete + "?purge=0"},
		},
		"may not look": {
			map[string][]route{haGet: {raw("403 Permission check failed (/, Sys.Audit)", "")}},
			"GET /cluster/ha/resources/vm:101: 403 Permission check failed (/, Sys.Audit)",
			[]string{haGet},
		},
		"a fault in between": {
			map[string][]route{haGet: {noHA}, haStatus: {raw("500 boom", "")}},
			"Proxmox HA releases vm:101: GET /cluster/ha/status/current: 500 boom",
			[]string{haGet, haStatus},
		},
	})
}

func TestRemoveHAKeepsRules(t *testing.T) {
	t.Parallel()
	testRemoveHA(t, map[string]removal{
		"Proxmox VE 8 has no rules": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {noPurge}, haRules: {raw("501 Method 'GET /cluster/ha/rules' not implemented", "")}, haDelete: {data("null")}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haDelete + "?purge=0", haRules, haDelete, haStatus},
		},
		"no purge, and no rule names it": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {noPurge}, haRules: {data(`[{"rule":"r1","resources":"vm:1010,vm:10"}]`)}, haDelete: {data("null")}, haStatus: {haUnlisted}},
			"<nil>",
			[]string{haGet, haDelete + "?purge=0", haRules, haDelete, haStatus},
		},
		"no purge, but a rule": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {noPurge}, haRules: {data(`[{"rule":"apart","resources":"vm:100,vm:101"}]`)}},
			"HA rules name vm:101 (apart), and this Proxmox VE would change them when the resource is removed",
			[]string{haGet, haDelete + "?purge=0", haRules},
		},
		"no purge, rules unreadable": {
			map[string][]route{haGet: {inHA}, haDelete + "?purge=0": {noPurge}, haRules: {raw("500 boom", "")}},
			"GET /cluster/ha/rules: 500 boom",
			[]string{haGet, haDelete + "?purge=0", haRules},
		},
	})
}

func TestRemoveHAGivesUp(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On(haGet, noHA)
		pve1.On(haStatus, haListed)
		const want = "Proxmox HA releases vm:101: gave up after 2m0s; last seen: deleting: context deadline exceeded"
		same(t, "error", want, fmt.Sprint(c.RemoveHA(t.Context(), 101)))
	})
}

func TestRemoveHAWithoutAnAnswer(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On(haGet, inHA)
		pve1.On(haDelete+"?purge=0", lost)
		if err := c.RemoveHA(t.Context(), 101); !errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestAddHA(t *testing.T) {
	t.Parallel()
	const post = "POST /cluster/ha/resources"
	was := cluster.HAResource{VMID: 101, State: "started", Settings: map[string]string{"max_restart": "2"}}
	cases := map[string]struct {
		want     cluster.HAResource
		get      route
		post     route
		err      string
		sent     map[string]string
		requests []string
	}{
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
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			var params map[string]string
			pve1.On(haGet, tc.get)
			pve1.On(post, sent(&params, func(w http.ResponseWriter, r *http.Request) { tc.post(w, r) }))
			pve1.On(haStatus, haUnlisted, haListed)
			err := c.AddHA(t.Context(), tc.want)
			same(t, "error", tc.err, fmt.Sprint(err))
			if err != nil && tc.post == nil && len(fault.Hints(err)) != 1 {
				t.Errorf("hints %q", fault.Hints(err))
			}
			same(t, "parameters", tc.sent, params)
			same(t, "requests", tc.requests, pve1.Requests())
		})
	}
}
