package pveapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

func haRoutes() []route {
	options := []string{"comment", "failback", "group", "max_relocate", "max_restart", "state"}
	see, change := []demand{{"/", []string{"Sys.Audit"}}}, []demand{{"/", []string{"Sys.Console"}}}
	return []route{
		{method: "GET", path: "/cluster/ha/resources", permit: see, params: []string{"type"}, handle: haResources},
		{
			method: "POST", path: "/cluster/ha/resources", permit: change, params: append([]string{"sid", "type"}, options...),
			need: []string{"sid"}, handle: createHA,
		},
		{method: "GET", path: "/cluster/ha/resources/{sid}", permit: see, handle: haResource},
		{method: "PUT", path: "/cluster/ha/resources/{sid}", permit: change, params: append([]string{"delete", "digest"}, options...), handle: changeHA},
		{method: "DELETE", path: "/cluster/ha/resources/{sid}", permit: change, params: []string{"purge"}, handle: deleteHA},
		{method: "GET", path: "/cluster/ha/rules", permit: see, params: []string{"resource", "type"}, handle: haRules},
		{method: "GET", path: "/cluster/ha/status/current", permit: see, handle: haStatus},
	}
}

func haResources(c *call) (any, error) {
	digest := c.HADigest()
	return listed(c.HA(), func(r world.HAResource) object {
		if kind, _, _ := strings.Cut(r.SID, ":"); c.params["type"] != "" && c.params["type"] != kind {
			return nil
		}
		return haEntry(r, digest)
	}), nil
}

func haResource(c *call) (any, error) {
	for _, r := range c.HA() {
		if r.SID == c.vars["sid"] || r.SID == "vm:"+c.vars["sid"] {
			return haEntry(r, c.HADigest()), nil
		}
	}
	return nil, &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("no such resource '%s'", c.vars["sid"])}
}

// haEntry returns a resource as it is configured, without unset properties.
func haEntry(r world.HAResource, digest string) object {
	out := object{"sid": r.SID, "type": "vm", "digest": digest}.with(map[string]string{"state": r.State, "group": r.Group})
	addHAOptions(out, r.Options)
	return out
}

func addHAOptions(out object, options map[string]string) {
	for name, value := range options {
		out[name] = value
		if n, err := strconv.Atoi(value); err == nil && name != "comment" {
			out[name] = n
		}
	}
}

func (c *call) haOptions() map[string]string {
	set := maps.Clone(c.params)
	for _, name := range []string{"sid", "type", "delete", "digest"} {
		delete(set, name)
	}
	return set
}

func createHA(c *call) (any, error) { return nil, c.CreateHA(c.user, c.params["sid"], c.haOptions()) }

func changeHA(c *call) (any, error) {
	return nil, c.ChangeHA(c.user, c.vars["sid"], c.haOptions(), list(c.params["delete"]), c.params["digest"])
}

// deleteHA purges rules unless told otherwise.
func deleteHA(c *call) (any, error) {
	_, given := c.params["purge"]
	return nil, c.DeleteHA(c.user, c.vars["sid"], !given || c.flag("purge"))
}

func haRules(c *call) (any, error) {
	list := []object{}
	for i, r := range c.HARules() {
		wrongType := c.params["type"] != "" && r.Type != c.params["type"]
		wrongResource := c.params["resource"] != "" && !slices.Contains(r.Resources, c.params["resource"])
		if wrongType || wrongResource {
			continue
		}
		entry := object{"rule": r.ID, "type": r.Type, "resources": strings.Join(r.Resources, ","), "order": i + 1}
		addHAOptions(entry, r.Options)
		list = append(list, entry)
	}
	return list, nil
}

// haOf returns the HA part of a VM's status.
func haOf(s world.HAStatus) object {
	out := object{"managed": bit(s.Managed)}
	if s.Managed {
		out.with(map[string]string{"group": s.Group, "state": s.State})
	}
	return out
}

// haStatus lists the quorum, the manager, every host's manager and every resource.
func haStatus(c *call) (any, error) {
	quorum := object{"id": "quorum", "type": "quorum", "node": c.host, "status": "OK", "quorate": bit(c.Quorate())}
	if !c.Quorate() {
		quorum["status"] = fmt.Sprintf("No quorum on node '%s'!", c.host)
	}
	services, master, now := c.HAServices(), c.Hosts()[0], c.Clock(c.host)
	list := []object{quorum}
	if len(services) == 0 {
		return list, nil // there is no manager yet
	}
	list = append(list, object{
		"id": "master", "type": "master", "node": master, "timestamp": now.Unix(),
		"status": fmt.Sprintf("%s (active, %s)", master, now.Format(time.ANSIC)),
	})
	for _, host := range c.Hosts() {
		state := "active"
		if c.HostDown(host) {
			state = "old timestamp - dead?"
		}
		list = append(list, object{
			"id": "lrm:" + host, "type": "lrm", "node": host, "timestamp": now.Unix(), "status": fmt.Sprintf("%s (%s, %s)", host, state, now.Format(time.ANSIC)),
		})
	}
	for _, r := range services {
		list = append(list, haService(c, r))
	}
	return list, nil
}

func haService(c *call, r world.HAResource) object {
	out := object{"id": "service:" + r.SID, "type": "service", "sid": r.SID}.with(map[string]string{"crm_state": r.Manager})
	requested := cmp.Or(r.State, "started")
	if !r.Leaving {
		out["request_state"], out["max_restart"], out["max_relocate"] = requested, 1, 1
		addHAOptions(out, r.Options)
	}
	running := false
	for _, vm := range c.VMs() {
		if "vm:"+strconv.Itoa(vm.ID) == r.SID {
			out["node"], running = vm.Host, vm.Running
		}
	}
	state := verboseHA(requested, r.Manager, running)
	if r.Leaving {
		state = "deleting"
	}
	out["state"], out["status"] = state, fmt.Sprintf("%s (%v, %s)", r.SID, out["node"], state)
	return out
}

// verboseHA does the work of get_verbose_service_state of pve-ha-manager's Tools.pm.
func verboseHA(requested, manager string, running bool) string {
	switch {
	case requested == "ignored":
		return "ignored"
	case manager == "":
		return "queued"
	case manager == "stopped" && requested == "started", manager == "started" && !running:
		return "starting"
	case manager == "stopped" && requested == "disabled":
		return "disabled"
	case manager == "started" && requested != "started":
		return "stopping"
	case manager == "error" && requested == "disabled":
		return "clearing error flag"
	}
	return manager
}
