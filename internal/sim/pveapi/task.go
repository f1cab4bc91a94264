package pveapi

import (
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

func taskRoutes() []route {
	filters := []string{"errors", "limit", "since", "source", "start", "statusfilter", "typefilter", "until", "userfilter", "vmid"}
	return []route{
		{method: "GET", path: "/cluster/tasks", handle: clusterTasks},
		{method: "GET", path: "/nodes/{node}/tasks", params: filters, handle: nodeTasks},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/status", handle: taskStatus},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/log", params: []string{"start", "limit", "download"}, handle: taskLog},
		{method: "DELETE", path: "/nodes/{node}/tasks/{upid}", handle: stopTask},
	}
}

// seesTask says that a task is the caller's own, or that the caller may look at its host.
func (c *call) seesTask(t world.Task) bool {
	return t.User == c.user || c.may("/nodes/"+t.Host, "Sys.Audit")
}

func clusterTasks(c *call) (any, error) {
	list := []object{}
	for _, t := range c.Tasks() {
		if c.seesTask(t) {
			list = append(list, taskEntry(t))
		}
	}
	return list, nil
}

func nodeTasks(c *call) (any, error) {
	var found []object
	for _, t := range c.Tasks() {
		if t.Host == c.node() && c.seesTask(t) && c.wantsTask(t) {
			found = append(found, taskEntry(t))
		}
	}
	c.total = len(found)
	return page(found, c.number("start", 0), c.number("limit", 50)), nil
}

func (c *call) wantsTask(t world.Task) bool {
	switch c.params["source"] {
	case "", "archive":
		if t.Running {
			return false
		}
	case "active":
		if !t.Running {
			return false
		}
	}
	failed := !t.Running && t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS")
	return (c.params["vmid"] == "" || t.ID == strconv.Itoa(c.vmid())) &&
		(c.params["typefilter"] == "" || t.Type == c.params["typefilter"]) &&
		(!c.flag("errors") || failed) &&
		strings.Contains(t.User, c.params["userfilter"]) &&
		int(t.Start.Unix()) >= c.number("since", 0) &&
		(c.params["until"] == "" || int(t.Start.Unix()) <= c.number("until", 0))
}

func page[T any](list []T, start, limit int) []T {
	list = list[min(max(start, 0), len(list)):]
	if limit > 0 {
		list = list[:min(limit, len(list))]
	}
	return append([]T{}, list...)
}

// taskEntry names user and token apart, as the API does.
func taskEntry(t world.Task) object {
	user, token, isToken := strings.Cut(t.User, "!")
	out := object{
		"upid": t.UPID, "node": t.Host, "type": t.Type, "id": t.ID, "user": user,
		"pid": t.PID, "pstart": t.PStart, "starttime": t.Start.Unix(),
	}
	if isToken {
		out["tokenid"] = token
	}
	if !t.Running {
		out["endtime"], out["status"] = t.End.Unix(), t.ExitStatus
	}
	return out
}

func taskStatus(c *call) (any, error) {
	t, ok := c.LookupTask(c.vars["upid"])
	if !ok {
		return nil, world.BadParam("upid", "no such task")
	}
	if t.User != c.user {
		if err := c.Check(c.user, "/nodes/"+t.Host, "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	out := taskEntry(t)
	delete(out, "endtime")
	out["status"] = "running"
	if !t.Running {
		out["status"], out["exitstatus"] = "stopped", t.ExitStatus
	}
	return out, nil
}

func taskLog(c *call) (any, error) {
	t, ok := c.LookupTask(c.vars["upid"])
	if !ok {
		return []object{{"n": 1, "t": "unable to open file - No such file or directory"}}, nil
	}
	if t.User != c.user {
		if err := c.Check(c.user, "/nodes/"+t.Host, "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	c.total = len(t.Log)
	rows := []object{}
	for i, line := range t.Log {
		rows = append(rows, object{"n": i + 1, "t": line})
	}
	if len(rows) == 0 {
		return []object{{"n": 1, "t": "no content"}}, nil
	}
	return page(rows, c.number("start", 0), c.number("limit", 50)), nil
}

func stopTask(c *call) (any, error) {
	t, ok := c.LookupTask(c.vars["upid"])
	if ok && t.User != c.user {
		if err := c.Check(c.user, "/nodes/"+t.Host, "Sys.Modify"); err != nil {
			return nil, err
		}
	}
	c.StopTask(c.vars["upid"])
	return nil, nil
}
