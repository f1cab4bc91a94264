package mayastor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/sim/must"
)

const firstPage = "/v0/volumes?max_entries=200&starting_token=0"

// look reads answers by path; one that is missing is an empty list.
func look(t *testing.T, pages map[string]string) (replica.System, error) {
	t.Helper()
	return Read(t.Context(), func(_ context.Context, path string, into any) error {
		body := pages[path]
		switch {
		case strings.HasPrefix(body, "!"):
			return errors.New(body[1:])
		case body == "" && strings.HasPrefix(path, "/v0/volumes"):
			body = `{"entries":[]}`
		case body == "":
			body = "[]"
		}
		return json.Unmarshal([]byte(body), into)
	})
}

// volumeOf is a volume with those replicas.
func volumeOf(uuid, target, status string, wanted int, replicas ...string) string {
	var list []string
	for i, r := range replicas {
		list = append(list, fmt.Sprintf(`"r%d":%s`, i, r))
	}
	return fmt.Sprintf(`{"spec":{"uuid":%q,"num_replicas":%d%s},"state":{"uuid":%q,"status":%q,"replica_topology":{%s}}}`, uuid, wanted, target, uuid, status, strings.Join(list, ","))
}

const published = `,"target":{"node":"wk1","protocol":"nvmf","frontend_nodes":[{"name":"wk2","nqn":"nqn.2019-05.io.openebs:node-name:wk2"}]}`

// TestRead reads answers as Mayastor writes them, in pages.
func TestRead(t *testing.T) {
	t.Parallel()
	got, err := look(t, map[string]string{
		"/v0/nodes": `[{"id":"wk1","spec":{"id":"wk1"},"state":{"id":"wk1","status":"Online"}},{"id":"wk2","state":{"status":"Offline"}},{"id":"wk3","spec":{"id":"wk3"}}]`,
		"/v0/pools": `[{"id":"p2","spec":{"node":"wk1"}},{"id":"p1","spec":{"node":"wk1"},"state":{"status":"Faulted"}},{"id":"p0","spec":{"node":"wk1"},"state":{"status":"Online"}},{"id":"p3","spec":{"node":"wk2"},"state":{"status":"Online"}}]`,
		firstPage: `{"next_token":1,"entries":[` + volumeOf("a", published, "Degraded", 3,
			`{"node":"wk1","pool":"p0","state":"Online","child-status":"Online"}`, `{"node":"wk2","state":"Unknown","child-status":"Faulted"}`) + `]}`,
		"/v0/volumes?max_entries=200&starting_token=1": `{"entries":[` + volumeOf("b", "", "Online", 1, `{"node":"wk1","state":"Online"}`) + "," +
			volumeOf("c", "", "Faulted", 2) + `]}`,
	})
	want := replica.System{
		Name: "Mayastor",
		Nodes: []replica.Node{
			{Name: "wk1", Lacks: "its pool p1 is Faulted, p2 is unknown for Mayastor"}, {Name: "wk2", Down: "is Offline for Mayastor"}, {Name: "wk3", Down: "is unknown for Mayastor"},
		},
		Volumes: []replica.Volume{
			{Name: "a", Wanted: 3, Through: "wk1", Users: []string{"wk2"}, Replicas: []replica.Replica{{Node: "wk1", Healthy: true}, {Node: "wk2"}}},
			{Name: "b", Wanted: 1, Alone: true, Idle: true, Robust: true, Replicas: []replica.Replica{{Node: "wk1", Healthy: true}}},
			{Name: "c", Wanted: 2},
		},
	}
	must.Do(t, err)
	must.Equal(t, "got", want, got)
}

// TestReplicas: while a volume is published, its nexus says which replicas are current.
func TestReplicas(t *testing.T) {
	t.Parallel()
	type row struct {
		target, replica string
		want            replica.Replica
	}
	cases := map[string]row{
		"in the nexus":            {published, `{"node":"wk1","state":"Online","child-status":"Online"}`, replica.Replica{Healthy: true}},
		"not in the nexus":        {published, `{"node":"wk1","state":"Online"}`, replica.Replica{}},
		"faulted in the nexus":    {published, `{"node":"wk1","state":"Online","child-status":"Faulted"}`, replica.Replica{}},
		"unknown in the nexus":    {published, `{"node":"wk1","state":"Online","child-status":"Unknown"}`, replica.Replica{}},
		"rebuilt":                 {published, `{"node":"wk1","state":"Online","child-status":"Degraded","rebuild-progress":0}`, replica.Replica{Rebuilt: true}},
		"rebuilt, not started":    {published, `{"node":"wk1","state":"Online","child-status":"Degraded"}`, replica.Replica{Rebuilt: true}},
		"rebuilt, still online":   {published, `{"node":"wk1","state":"Online","child-status":"Online","rebuild-progress":7}`, replica.Replica{Rebuilt: true}},
		"its pool is away":        {published, `{"node":"wk1","state":"Unknown","child-status":"Online"}`, replica.Replica{}},
		"its pool has a fault":    {published, `{"node":"wk1","state":"Faulted","child-status":"Degraded"}`, replica.Replica{}},
		"not published":           {"", `{"node":"wk1","state":"Online"}`, replica.Replica{Healthy: true}},
		"not published, and away": {"", `{"node":"wk1","state":"Unknown"}`, replica.Replica{}},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		s := must.Get(look(t, map[string]string{firstPage: `{"entries":[` + volumeOf("a", tc.target, "Online", 1, tc.replica) + `]}`}))(t)
		tc.want.Node = "wk1"
		v := s.Volumes[0]
		must.Not(t, v.Replicas[0] != tc.want || v.Robust != tc.want.Healthy, "%+v, want %+v", v, tc.want)
	})
}

// TestReadFails: one answer that is missing is an error.
func TestReadFails(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v0/nodes", "/v0/pools", firstPage} {
		_, err := look(t, map[string]string{path: "!refused"})
		must.Not(t, err == nil || err.Error() != "refused", "%s: %v", path, err)
	}
}
