// Package linstor is LINSTOR of a lab: a [Controller] with its REST API, a satellite on each of its nodes, and DRBD
// between them.
package linstor

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// lostAfter is how long controller and DRBD need to notice that a node is gone (DRBD's ping-int and
	// ping-timeout, drbdsetup.xml in linstor-common).
	lostAfter = 10 * time.Second
	// connectsAfter is the time from a node's start until its satellite has sent everything to the controller.
	connectsAfter = 10 * time.Second
	// syncsFor is how long it takes to fill a copy with what the copy missed.
	syncsFor = 30 * time.Second
)

// Copy is a resource with a disk of its own.
type Copy struct {
	Node string
	Disk string // state of DRBD's disk, while it is connected: "UpToDate", "Inconsistent"
	Cut  bool   // it has lost the connections to its peers
	sync bool   // is being filled
}

// Volume is a resource definition with its resources.
type Volume struct {
	Name, Claim string // of the claim, "default/data"; "" for none
	Wanted      int    // place_count of its resource group
	Copies      []*Copy
	Diskless    []string // nodes of tiebreakers
	User        string   // node that has it open
	Quorum      bool     // DrbdOptions/Resource/quorum is majority
}

// Controller is LINSTOR's controller. Its methods are safe for concurrent use.
type Controller struct {
	changed func()

	mu      sync.Mutex
	props   map[string]string
	nodes   []string
	ofNode  map[string]map[string]string // properties
	evicted map[string]bool
	online  map[string]bool
	up      map[string]bool
	volumes []*Volume
	tls     bool
}

// New makes a controller, which calls changed after each change from outside.
func New(changed func()) *Controller {
	// Properties of a new controller, and Piraeus' own (pkg/vars/defaults.go in piraeus-operator).
	props := map[string]string{"DrbdOptions/auto-quorum": "io-error", "DrbdOptions/auto-add-quorum-tiebreaker": "True", "DrbdOptions/AutoEvictAllowEviction": "false"}
	return &Controller{changed: changed, props: props, online: map[string]bool{}, up: map[string]bool{}, ofNode: map[string]map[string]string{}, evicted: map[string]bool{}}
}

// Save returns a function that undoes all later changes of properties, and forgets all later nodes and volumes.
func (c *Controller) Save() (putBack func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	props, ofNode, nodes, volumes, tls := maps.Clone(c.props), cloned(c.ofNode), len(c.nodes), len(c.volumes), c.tls
	return func() {
		c.change(func() {
			c.props, c.ofNode, c.nodes, c.volumes, c.tls = maps.Clone(props), cloned(ofNode), c.nodes[:nodes], c.volumes[:volumes], tls
		})
	}
}

func cloned(ofNode map[string]map[string]string) map[string]map[string]string {
	out := map[string]map[string]string{}
	for node, props := range ofNode {
		out[node] = maps.Clone(props)
	}
	return out
}

// AddNode registers the satellite of a node.
func (c *Controller) AddNode(name string) {
	c.change(func() {
		c.nodes, c.online[name], c.up[name] = append(c.nodes, name), true, true
		c.ofNode[name] = map[string]string{"CurStltConnName": "default-ipv4", "NodeUname": name}
	})
}

// SetNodeProperty sets a property of a node; "" removes it.
func (c *Controller) SetNodeProperty(node, key, value string) {
	c.change(func() {
		if c.ofNode[node][key] = value; value == "" {
			delete(c.ofNode[node], key)
		}
	})
}

// NodeProperty reads a property of a node; "" if it has none.
func (c *Controller) NodeProperty(node, key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ofNode[node][key]
}

// Evicted reports whether LINSTOR has evicted a node.
func (c *Controller) Evicted(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evicted[node]
}

func (c *Controller) AddVolume(v Volume) { c.change(func() { c.volumes = append(c.volumes, &v) }) }

func (c *Controller) SetProperty(key, value string) { c.change(func() { c.props[key] = value }) }

func (c *Controller) Property(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.props[key]
}

// EnableTLS sets spec.apiTLS of the LinstorCluster: port 3370 then only redirects.
func (c *Controller) EnableTLS() { c.change(func() { c.tls = true }) }

func (c *Controller) SetCopy(volume, node string, set func(*Copy)) {
	c.change(func() {
		for _, v := range c.volumes {
			for _, k := range v.Copies {
				if v.Name == volume && k.Node == node {
					set(k)
				}
			}
		}
	})
}

// Whole reports whether all copies of a volume are UpToDate and connected.
func (c *Controller) Whole(volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.volumes {
		if v.Name == volume && slices.ContainsFunc(v.Copies, func(k *Copy) bool { return !c.online[k.Node] || k.Cut || k.Disk != "UpToDate" }) {
			return false
		}
	}
	return true
}

func (c *Controller) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	c.changed()
}

// Step brings the copies up to date with the nodes that run; due says whether a duration has passed since it was
// first asked for.
func (c *Controller) Step(runs func(node string) bool, due func(key string, d time.Duration) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		switch up := runs(n); {
		case up && !c.online[n] && !c.evicted[n] && due("linstor/"+n+"/connects", connectsAfter):
			c.online[n], c.up[n] = true, true
		case !up && c.up[n] && due("linstor/"+n+"/lost", lostAfter):
			c.online[n], c.up[n] = false, false
		}
	}
	c.evict(due)
	for _, v := range c.volumes {
		c.stepVolume(v, due)
	}
}

// stepVolume lets copies on nodes that are away fall behind, if other copies are written to meanwhile, and fills them
// again from the other copies.
func (c *Controller) stepVolume(v *Volume, due func(key string, d time.Duration) bool) {
	source := slices.ContainsFunc(v.Copies, func(k *Copy) bool { return c.online[k.Node] && !k.Cut && k.Disk == "UpToDate" })
	for _, k := range v.Copies {
		switch {
		case !c.up[k.Node]:
			if source {
				k.Disk, k.sync = "Outdated", false
			}
		case !c.online[k.Node] || k.Cut || !source || k.Disk != "Outdated" && k.Disk != "Inconsistent":
			k.sync = false
		default:
			k.Disk, k.sync = "Inconsistent", true
			if due("linstor/"+v.Name+"/"+k.Node+"/syncs", syncsFor) {
				k.Disk, k.sync = "UpToDate", false
			}
		}
	}
}

type object = map[string]any

// ServeHTTP serves the REST API (linstor-server, docs/rest_v1_openapi.yaml; Json.java writes the answers).
func (c *Controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tls && strings.HasPrefix(r.URL.Path, "/v1") {
		host, _, _ := strings.Cut(r.Host, ":")
		http.Redirect(w, r, "https://"+host+":3371"+r.URL.Path, http.StatusFound) // HTTPSForwarder in GrizzlyHttpService.java
		return
	}
	if node, ok := strings.CutPrefix(r.URL.Path, "/v1/nodes/"); ok && r.Method == http.MethodPut && !strings.Contains(node, "/") {
		c.modify(w, r, node)
		return
	}
	if r.Method != http.MethodGet {
		write(w, http.StatusMethodNotAllowed, []object{})
		return
	}
	switch strings.TrimSuffix(r.URL.Path, "/") {
	case "/v1/nodes":
		write(w, http.StatusOK, c.nodeList())
	case "/v1/view/resources":
		write(w, http.StatusOK, c.resourceList())
	case "/v1/resource-definitions":
		write(w, http.StatusOK, c.definitions())
	case "/v1/resource-groups":
		write(w, http.StatusOK, c.groups())
	case "/v1/controller/properties":
		write(w, http.StatusOK, c.props)
	default:
		http.NotFound(w, r)
	}
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func (c *Controller) nodeList() []object {
	list := []object{}
	for _, n := range c.nodes {
		status := "OFFLINE"
		if c.online[n] {
			status = "ONLINE"
		}
		flags := []string{}
		if c.evicted[n] {
			flags = append(flags, "EVICTED")
		}
		list = append(list, object{
			"name": n, "type": "SATELLITE", "props": c.ofNode[n], "flags": flags, "connection_status": status,
			"storage_providers": []string{"DISKLESS", "LVM", "LVM_THIN", "FILE", "FILE_THIN"}, "resource_layers": []string{"DRBD", "LUKS", "STORAGE"},
		})
	}
	return list
}

func (c *Controller) definitions() []object {
	list := []object{}
	for _, v := range c.volumes {
		props := object{}
		if namespace, name, ok := strings.Cut(v.Claim, "/"); ok {
			props["Aux/csi.storage.k8s.io/pvc/namespace"], props["Aux/csi.storage.k8s.io/pvc/name"] = namespace, name
		}
		props["DrbdOptions/Resource/quorum"] = "off"
		if v.Quorum {
			props["DrbdOptions/Resource/quorum"] = "majority"
		}
		list = append(list, object{
			"name": v.Name, "props": props, "layer_data": []object{{"type": "DRBD", "data": object{"peer_slots": 7, "transport_type": "IP", "down": false}}, {"type": "STORAGE"}},
			"resource_group_name": "sc-" + v.Name,
		})
	}
	return list
}

func (c *Controller) groups() []object {
	list := []object{{"name": "DfltRscGrp", "select_filter": object{"place_count": 2}}}
	for _, v := range c.volumes {
		list = append(list, object{"name": "sc-" + v.Name, "select_filter": object{"place_count": v.Wanted, "storage_pool": "pool1"}})
	}
	return list
}

func (c *Controller) resourceList() []object {
	list := []object{}
	for _, v := range c.volumes {
		for _, k := range v.Copies {
			list = append(list, c.resource(v, k.Node, k))
		}
		for _, n := range v.Diskless {
			list = append(list, c.resource(v, n, nil))
		}
	}
	return list
}

// resource returns the resource of a volume on a node, with a copy or without. Its state is known while its satellite
// is connected.
func (c *Controller) resource(v *Volume, node string, k *Copy) object {
	drbd := object{"node_id": 0, "peer_slots": 7, "drbd_volumes": []object{}, "may_promote": k != nil && k.Disk == "UpToDate"}
	volume := object{"volume_number": 0, "provider_kind": "LVM_THIN"}
	r := object{
		"name": v.Name, "node_name": node, "props": object{}, "layer_object": object{"type": "DRBD", "drbd": drbd, "children": []object{{"type": "STORAGE"}}},
		"volumes": []object{volume},
	}
	if c.evicted[node] {
		r["flags"] = []string{"EVICTED"}
	}
	state := object{"disk_state": "Diskless"}
	if k == nil {
		r["flags"] = []string{"DISKLESS", "DRBD_DISKLESS", "TIE_BREAKER"}
		volume["provider_kind"] = "DISKLESS"
	} else if state["disk_state"] = k.Disk; k.sync {
		source := v.Copies[slices.IndexFunc(v.Copies, func(o *Copy) bool { return o.Disk == "UpToDate" })].Node
		state["replication_states"] = object{source: object{"replication_state": "SyncTarget", "done_percentage": 50.0}}
	}
	if !c.online[node] {
		return r
	}
	volume["state"], r["state"] = state, object{"in_use": v.User == node}
	connections := object{}
	for _, peer := range v.peers() {
		if peer == node {
			continue
		}
		message := "Connected"
		if !c.up[peer] || v.cut(node) || v.cut(peer) {
			message = "Connecting"
		}
		connections[peer] = object{"connected": message == "Connected", "message": message}
	}
	drbd["connections"] = connections
	return r
}

func (v *Volume) peers() []string {
	var names []string
	for _, k := range v.Copies {
		names = append(names, k.Node)
	}
	return append(names, v.Diskless...)
}

func (v *Volume) cut(node string) bool {
	return slices.ContainsFunc(v.Copies, func(k *Copy) bool { return k.Node == node && k.Cut })
}

const (
	allowEviction = "DrbdOptions/AutoEvictAllowEviction"
	evictAfter    = "DrbdOptions/AutoEvictAfterTime"
)

// evict evicts nodes that are away for too long, unless more than a third of all nodes are away (getFailedPeers in
// ReconnectorTask.java, whose defaults these are).
func (c *Controller) evict(due func(key string, d time.Duration) bool) {
	away := 0
	for _, n := range c.nodes {
		if !c.online[n] && !c.evicted[n] {
			away++
		}
	}
	for _, n := range c.nodes {
		minutes, err := strconv.Atoi(c.property(n, evictAfter, "720"))
		if err != nil || c.up[n] || c.evicted[n] || !due("linstor/"+n+"/evicted", time.Duration(minutes)*time.Minute) {
			continue
		}
		if strings.EqualFold(c.property(n, allowEviction, "false"), "true") && float64(away) <= math.Round(34*float64(len(c.nodes))/100) {
			c.evicted[n] = true
			for _, v := range c.volumes {
				c.replace(v, n)
			}
		}
	}
}

func (c *Controller) property(node, key, otherwise string) string {
	for _, props := range []map[string]string{c.ofNode[node], c.props} {
		if value, set := props[key]; set {
			return value
		}
	}
	return otherwise
}

// replace makes a copy elsewhere in place of a copy on an evicted node, unless enough copies are left
// (CtrlRscAutoRePlaceRscHelper.java).
func (c *Controller) replace(v *Volume, node string) {
	here, left := false, 0
	for _, k := range v.Copies {
		if here = here || k.Node == node; !c.evicted[k.Node] {
			left++
		}
	}
	if !here || left >= v.Wanted {
		return
	}
	for _, n := range c.nodes {
		if c.online[n] && !slices.Contains(v.peers(), n) {
			v.Copies = append(v.Copies, &Copy{Node: n, Disk: "Inconsistent"})
			return
		}
	}
}

func answer(code int64, message string) []object {
	return []object{{"ret_code": code, "message": message}}
}

// Return codes of a change of a node (consts.json in linstor-common).
const (
	modified    = 0x023c0003
	maskError   = -0x4000000000000000
	invalidProp = maskError | 0x023c0000 | 213
	unknownNode = maskError | 0x023c0000 | 300
	parseError  = maskError | 0x0ffffffffffffffd
)

// modify answers a PUT of a NodeModify. Nothing is changed if one of the properties can't be changed.
func (c *Controller) modify(w http.ResponseWriter, r *http.Request, node string) {
	var m struct {
		Type             string            `json:"node_type"`
		Set              map[string]string `json:"override_props"`
		Delete           []string          `json:"delete_props"`
		DeleteNamespaces []string          `json:"delete_namespaces"`
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		write(w, http.StatusBadRequest, answer(parseError, "Unable to parse input json."))
		return
	}
	if _, known := c.ofNode[node]; !known {
		write(w, http.StatusNotFound, answer(unknownNode, "Node '"+node+"' not found."))
		return
	}
	for key, value := range m.Set {
		_, err := strconv.ParseInt(value, 10, 64)
		switch isAux := strings.HasPrefix(key, "Aux/"); {
		case key == evictAfter && err != nil, key == allowEviction && !slices.Contains([]string{"true", "false"}, strings.ToLower(value)):
			write(w, http.StatusInternalServerError, answer(invalidProp, "Invalid property("+key+") value: "+value))
			return
		case !isAux && key != evictAfter && key != allowEviction:
			write(w, http.StatusInternalServerError, answer(invalidProp, "Invalid property key: "+key))
			return
		}
	}
	maps.Copy(c.ofNode[node], m.Set)
	for _, key := range m.Delete {
		delete(c.ofNode[node], key)
	}
	write(w, http.StatusOK, answer(modified, "Node '"+node+"' modified."))
}
