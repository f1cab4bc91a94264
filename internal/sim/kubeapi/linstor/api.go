package linstor

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

type object = map[string]any

// ServeHTTP is the REST API (linstor-server, docs/rest_v1_openapi.yaml; Json.java writes the answers).
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

func decode(r *http.Request, into any) error { return json.NewDecoder(r.Body).Decode(into) }

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

// resource is a resource of a node, with a copy or without. Its state is known while its satellite is connected.
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

// peers are the nodes with a resource.
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
