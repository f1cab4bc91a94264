// Package mayastor is OpenEBS Mayastor of a lab: a [ControlPlane] with its REST API, an io-engine on each of its
// nodes, and the nexuses of volumes.
package mayastor

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// lostAfter is how long the control plane needs to notice that a node is gone (--deadline of agent-core).
	lostAfter = 10 * time.Second
	// importsAfter is the time from a node's start until its pool is imported.
	importsAfter = 10 * time.Second
	// rebuildsFor is how long it takes to fill a replica with what the replica missed.
	rebuildsFor = 30 * time.Second
	// switchesAfter is how long, with HA, it takes until another node has the target of a volume.
	switchesAfter = 20 * time.Second
	// replacesAfter is how long the control plane waits for a faulted replica (TWAIT_SPERF in rebuild_policies.rs).
	replacesAfter = 600 * time.Second
)

// Replica is a replica of a volume on a node, in the node's pool.
type Replica struct {
	Node  string
	Child string // its state in the nexus: "Online", "Degraded" (is rebuilt), "Faulted"
}

// Volume is a volume with its replicas.
type Volume struct {
	UUID        string
	Wanted      int // num_replicas
	Replicas    []*Replica
	Unpublished bool // it has no nexus
	// Target is the node of the volume's nexus; "": the node of the last replica that serves. Users are the nodes of
	// the volume's pods; nil: the Target.
	Target string
	Users  []string
}

// ControlPlane is the control plane of Mayastor. Its methods are safe for concurrent use.
type ControlPlane struct {
	changed func()

	mu      sync.Mutex
	nodes   []string
	up      map[string]bool
	volumes []*Volume
	noHA    bool
}

// New makes a control plane, which calls changed after each change from outside.
func New(changed func()) *ControlPlane { return &ControlPlane{changed: changed, up: map[string]bool{}} }

// Save returns a function that forgets all later nodes and volumes, and enables HA again if it is enabled now.
func (c *ControlPlane) Save() (putBack func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes, volumes, noHA := len(c.nodes), len(c.volumes), c.noHA
	return func() { c.change(func() { c.nodes, c.volumes, c.noHA = c.nodes[:nodes], c.volumes[:volumes], noHA }) }
}

// AddNode registers an io-engine with a pool.
func (c *ControlPlane) AddNode(name string) {
	c.change(func() { c.nodes, c.up[name] = append(c.nodes, name), true })
}

func (c *ControlPlane) AddVolume(v Volume) { c.change(func() { c.volumes = append(c.volumes, &v) }) }

// DisableHA keeps targets from moving away from a lost node (--disable-ha of agent-core).
func (c *ControlPlane) DisableHA() { c.change(func() { c.noHA = true }) }

// target returns the node of a volume's nexus.
func (c *ControlPlane) target(v *Volume) string {
	target := cmp.Or(v.Target, v.Replicas[0].Node)
	for _, r := range v.Replicas {
		if v.Target == "" && c.up[r.Node] && r.Child == "Online" {
			target = r.Node
		}
	}
	return target
}

func (c *ControlPlane) SetReplica(volume, node string, set func(*Replica)) {
	c.change(func() {
		for _, v := range c.volumes {
			for _, r := range v.Replicas {
				if v.UUID == volume && r.Node == node {
					set(r)
				}
			}
		}
	})
}

// Whole reports whether a volume has all its replicas.
func (c *ControlPlane) Whole(volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.volumes, func(v *Volume) bool { return v.UUID == volume })
	return c.healthy(c.volumes[i]) >= c.volumes[i].Wanted
}

func (c *ControlPlane) healthy(v *Volume) (n int) {
	for _, r := range v.Replicas {
		if c.up[r.Node] && r.Child == "Online" {
			n++
		}
	}
	return n
}

func (c *ControlPlane) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	c.changed()
}

// Step brings the replicas up to date with the nodes that run; due says whether a duration has passed since it was
// first asked for.
func (c *ControlPlane) Step(runs func(node string) bool, due func(key string, d time.Duration) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		switch up := runs(n); {
		case up && !c.up[n] && due("mayastor/"+n+"/imports", importsAfter):
			c.up[n] = true
		case !up && c.up[n] && due("mayastor/"+n+"/lost", lostAfter):
			c.up[n] = false
		}
	}
	for _, v := range c.volumes {
		if !v.Unpublished {
			c.stepVolume(v, due)
		}
	}
}

// stepVolume does what the nexus of a volume does: it faults replicas on nodes that are away, and rebuilds them when
// the nodes are back, or on another node.
func (c *ControlPlane) stepVolume(v *Volume, due func(key string, d time.Duration) bool) {
	source := c.healthy(v) > 0
	if v.Target != "" && !c.up[v.Target] && !c.noHA && source && due("mayastor/"+v.UUID+"/switches", switchesAfter) {
		v.Target = "" // agent-ha-cluster republishes it beside a replica
		v.Target = c.target(v)
	}
	for _, r := range v.Replicas {
		key := "mayastor/" + v.UUID + "/" + r.Node
		switch {
		case !c.up[r.Node]:
			if source {
				r.Child = "Faulted"
			}
			if other := c.spare(v); source && other != "" && due(key+"/replaced", replacesAfter) {
				r.Node = other
			}
		case r.Child == "Online" || !source:
		default:
			r.Child = "Degraded"
			if due(key+"/rebuilt", rebuildsFor) {
				r.Child = "Online"
			}
		}
	}
}

// spare returns a node that runs and has no replica of the volume; "" if there is none.
func (c *ControlPlane) spare(v *Volume) string {
	for _, n := range c.nodes {
		if c.up[n] && !slices.ContainsFunc(v.Replicas, func(r *Replica) bool { return r.Node == n }) {
			return n
		}
	}
	return ""
}

type object = map[string]any

// ServeHTTP serves the REST API (mayastor-control-plane, control-plane/rest/openapi-specs/v0_api_spec.yaml).
func (c *ControlPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.Method != http.MethodGet:
		write(w, http.StatusMethodNotAllowed, object{"details": "", "message": "", "kind": "Unimplemented"})
	case r.URL.Path == "/v0/nodes":
		write(w, http.StatusOK, c.nodeList())
	case r.URL.Path == "/v0/pools":
		write(w, http.StatusOK, c.poolList())
	case r.URL.Path == "/v0/volumes":
		limit, err := strconv.Atoi(r.URL.Query().Get("max_entries"))
		if err != nil {
			write(w, http.StatusBadRequest, object{"details": "max_entries is required", "message": "", "kind": "Deserialize"})
			return
		}
		from, _ := strconv.Atoi(r.URL.Query().Get("starting_token")) // the first by default
		write(w, http.StatusOK, c.volumeList(limit, from))
	default:
		http.NotFound(w, r)
	}
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func (c *ControlPlane) nodeList() []object {
	list := []object{}
	for _, n := range c.nodes {
		status := "Offline"
		if c.up[n] {
			status = "Online"
		}
		list = append(list, object{"id": n, "spec": object{"id": n, "grpcEndpoint": "10.1.0.5:10124"}, "state": object{"id": n, "grpcEndpoint": "10.1.0.5:10124", "status": status}})
	}
	return list
}

func (c *ControlPlane) poolList() []object {
	list := []object{}
	for _, n := range c.nodes {
		p := object{"id": "pool-on-" + n, "spec": object{"id": "pool-on-" + n, "node": n, "disks": []string{"/dev/vdb"}, "status": "Created"}}
		if c.up[n] {
			p["state"] = object{"id": "pool-on-" + n, "node": n, "disks": []string{"aio:///dev/vdb"}, "status": "Online", "capacity": 10737418240, "used": 1073741824}
		}
		list = append(list, p)
	}
	return list
}

// volumeList returns a page of the volumes, beginning at the token from; without a limit the page has all the rest.
func (c *ControlPlane) volumeList(limit, from int) object {
	entries := []object{}
	from = min(from, len(c.volumes))
	to := len(c.volumes)
	if limit > 0 {
		to = min(to, from+limit)
	}
	for _, v := range c.volumes[from:to] {
		entries = append(entries, c.volume(v))
	}
	page := object{"entries": entries}
	if to < len(c.volumes) {
		page["next_token"] = to
	}
	return page
}

func (c *ControlPlane) volume(v *Volume) object {
	spec := object{"uuid": v.UUID, "num_replicas": v.Wanted, "size": 1073741824, "status": "Created", "policy": object{"self_heal": true}, "thin": true}
	state := object{"uuid": v.UUID, "size": 1073741824, "status": "Online"}
	if !v.Unpublished {
		target := c.target(v)
		users := []object{}
		for _, name := range v.Users {
			users = append(users, object{"name": name, "nqn": "nqn.2019-05.io.openebs:node-name:" + name})
		}
		if v.Users == nil {
			users = append(users, object{"name": target, "nqn": "nqn.2019-05.io.openebs:node-name:" + target})
		}
		spec["target"] = object{"node": target, "protocol": "nvmf", "frontend_nodes": users}
		switch n := c.healthy(v); {
		case n == 0:
			state["status"] = "Faulted"
		case n < v.Wanted:
			state["status"] = "Degraded"
		}
		state["target"] = object{"node": target, "state": state["status"], "children": []object{}, "rebuilds": 0, "protocol": "nvmf", "size": 1073741824, "uuid": v.UUID, "deviceUri": ""}
	}
	replicas := object{}
	for _, r := range v.Replicas {
		t := object{"node": r.Node, "pool": "pool-on-" + r.Node, "state": "Unknown"}
		if c.up[r.Node] {
			t["state"] = "Online"
		}
		if !v.Unpublished {
			t["child-status"] = r.Child
			if r.Child == "Degraded" {
				t["rebuild-progress"] = 50
			}
		}
		replicas[v.UUID[:8]+"-"+r.Node] = t
	}
	state["replica_topology"] = replicas
	return object{"spec": spec, "state": state}
}
