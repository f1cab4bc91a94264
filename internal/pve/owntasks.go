package pve

import (
	"context"
	"errors"
	"fmt"
	"net/url"
)

// OwnTasks lists the tasks that our token started on any host and that still
// run: work that an earlier process of ours, killed since, had asked for goes on
// without it. A token always sees its own tasks (API2/Tasks.pm).
func (c *Client) OwnTasks(ctx context.Context) ([]string, error) {
	var hosts []struct{ Node, Status string }
	if err := c.get(ctx, "/nodes", &hosts); err != nil {
		return nil, fmt.Errorf("list hosts: %w", err)
	}
	var running []string
	var errs []error
	for _, h := range hosts {
		if h.Status == "offline" {
			continue // nothing runs there
		}
		var tasks []struct {
			UPID    string
			EndTime int64
		}
		if err := c.get(ctx, "/nodes/"+url.PathEscape(h.Node)+"/tasks?source=active&limit=500", &tasks); err != nil {
			errs = append(errs, fmt.Errorf("list tasks on %s: %w", h.Node, err))
			continue
		}
		for _, t := range tasks {
			u, err := ParseUPID(t.UPID)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			// The list keeps tasks for a while after their end.
			if t.EndTime == 0 && u.User == c.tokenID {
				running = append(running, u.String())
			}
		}
	}
	return running, errors.Join(errs...)
}
