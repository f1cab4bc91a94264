package pveapi

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

func taskRoutes() []route {
	filters := []string{"errors", "limit", "since", "source", "start", "statusfilter", "typefilter", "until", "userfilter", "vmid"}
	return []route{
		{method: "GET", path: "/nodes/{node}/tasks", params: filters, daemonless: true, handle: nodeTasks},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/status", handle: taskStatus},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/log", params: []string{"start", "limit", "download"}, handle: taskLog},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}", daemonless: true, handle: taskIndex},
		{method: "DELETE", path: "/nodes/{node}/tasks/{upid}", handle: stopTask},
	}
}

// ownsTask reports whether a task is the caller's own: a token owns its tasks; a user also owns the tasks of all
// their tokens (Tasks.pm).
func (c *call) ownsTask(t world.Task) bool {
	owner, _, _ := strings.Cut(t.User, "!")
	return c.user == t.User || c.user == owner
}

// seesTask reports whether the caller owns a task or may see its host.
func (c *call) seesTask(t world.Task) bool {
	return c.ownsTask(t) || c.may("/nodes/"+t.Host, "Sys.Audit")
}

// upid returns the path's task; found is false if the node has no such task.
func (c *call) upid() (t world.Task, found bool, err error) {
	node, owner, ok := world.ParseUPID(c.vars["upid"])
	if !ok {
		return t, false, world.BadParam("upid", "unable to parse worker upid")
	}
	t, found = c.LookupTask(c.vars["upid"])
	found = found && node == c.node()
	if !found {
		t.Host, t.User = node, owner
	}
	return t, found, nil
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
	source := cmp.Or(c.params["source"], "archive")
	failed := !t.Running && t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS")
	return (source != "archive" || !t.Running) && (source != "active" || t.Running) &&
		(c.params["vmid"] == "" || t.ID == strconv.Itoa(c.vmid())) &&
		(c.params["typefilter"] == "" || t.Type == c.params["typefilter"]) &&
		(!c.flag("errors") || failed) &&
		strings.Contains(strings.ToLower(t.User), strings.ToLower(c.params["userfilter"])) &&
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

// taskEntry separates user and token, as the API does.
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
	t, err := c.existingTask("Sys.Audit")
	if err != nil {
		return nil, err
	}
	out := taskEntry(t)
	delete(out, "endtime")
	out["status"] = "running"
	if !t.Running {
		out["status"], out["exitstatus"] = "stopped", t.ExitStatus
	}
	return out, nil
}

// existingTask returns the task of the path, if the caller owns it or holds the privilege on its node.
func (c *call) existingTask(privilege string) (world.Task, error) {
	t, found, err := c.upid()
	if err == nil && !found {
		err = world.BadParam("upid", "no such task")
	}
	if err == nil && !c.ownsTask(t) {
		err = c.Check(c.user, "/nodes/"+c.node(), privilege)
	}
	return t, err
}

// taskLog does the work of dump_logfile of Tools.pm: if the log can't be opened, the error is a line of the log.
func taskLog(c *call) (any, error) {
	t, found, err := c.upid()
	if err != nil {
		return nil, err
	}
	if !c.ownsTask(t) {
		if err := c.Check(c.user, "/nodes/"+c.node(), "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	rows := []object{}
	for i, line := range t.Log {
		rows = append(rows, object{"n": i + 1, "t": line})
	}
	c.total = max(1, len(rows))
	switch {
	case !found:
		return []object{{"n": 1, "t": "unable to open file - No such file or directory"}}, nil
	case len(rows) == 0:
		return []object{{"n": 1, "t": "no content"}}, nil
	}
	return page(rows, c.number("start", 0), cmp.Or(c.number("limit", 0), 50)), nil
}

func stopTask(c *call) (any, error) {
	if _, err := c.existingTask("Sys.Modify"); err != nil {
		return nil, err
	}
	c.StopTask(c.vars["upid"])
	return nil, nil
}

func taskIndex(c *call) (any, error) { return []object{{"name": "log"}, {"name": "status"}}, nil }
