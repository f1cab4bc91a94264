package pve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// CreateVM implements cluster.Editor.
func (c *Client) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	params := maps.Clone(config)
	for _, key := range []string{"start", "force", "archive", "vmid", "digest"} {
		if _, has := params[key]; has {
			return fmt.Errorf("create VM %d: %q is no key of a configuration", id, key)
		}
	}
	if params == nil {
		params = map[string]string{}
	}
	params["vmid"] = strconv.Itoa(int(id))
	var upid string
	err := c.change(ctx, http.MethodPost, "/nodes/"+url.PathEscape(host)+"/qemu", params, &upid)
	return c.finish(ctx, upid, err)
}

// SetConfig implements cluster.Editor. When it fails, nothing of it is left to
// happen at the VM's next stop or start.
func (c *Client) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	if len(set) == 0 && len(del) == 0 {
		return nil
	}
	params := maps.Clone(set)
	if params == nil {
		params = map[string]string{}
	}
	if len(del) > 0 {
		params["delete"] = strings.Join(del, ",")
	}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	if err := c.putConfig(ctx, vm, params, touchesDisk(set, del)); err != nil {
		return c.refused(ctx, vm, slices.AppendSeq(slices.Clone(del), maps.Keys(set)), err)
	}
	return nil
}

// refused is the error of a change of those keys that did not succeed, after
// what it left pending is taken back.
func (c *Client) refused(ctx context.Context, vm cluster.VM, touched []string, err error) error {
	if errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, cluster.ErrChanged) {
		return err
	}
	if revertErr := c.revertPending(ctx, vm, touched); revertErr != nil {
		return errors.Join(err, revertErr)
	}
	return err
}

func (c *Client) putConfig(ctx context.Context, vm cluster.VM, params map[string]string, slow bool) error {
	if !slow {
		return c.change(ctx, http.MethodPut, vmPath(vm, "config"), params, nil)
	}
	var upid string
	err := c.change(ctx, http.MethodPost, vmPath(vm, "config"), params, &upid)
	return c.finish(ctx, upid, err)
}

// revertPending takes back what a refused change has left pending: Proxmox keeps
// a delete that the running guest did not follow, or that it could not carry out
// on a stopped one, and tries it again when the VM stops or starts (QemuServer.pm,
// vmconfig_apply_pending). What was pending before is left alone.
func (c *Client) revertPending(ctx context.Context, was cluster.VM, touched []string) error {
	now := was
	if err := c.readConfig(ctx, &now); isNoConfig(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("see what the refused change left pending: %w", err)
	}
	left := slices.DeleteFunc(now.Pending, func(key string) bool {
		return !slices.Contains(touched, key) || slices.Contains(was.Pending, key)
	})
	if len(left) == 0 {
		return nil
	}
	params := map[string]string{"revert": strings.Join(left, ",")}
	if err := withDigest(params, now); err != nil {
		return err
	}
	if err := c.putConfig(ctx, now, params, false); err != nil {
		return fmt.Errorf("take back what the refused change left pending (%s): %w", strings.Join(left, ", "), err)
	}
	return nil
}

// DeleteVM implements cluster.Editor. A task that ends with warnings is an
// error: a volume could not be freed.
func (c *Client) DeleteVM(ctx context.Context, vm cluster.VM) error {
	var upid string
	err := c.change(ctx, http.MethodDelete, vmPath(vm, ""), nil, &upid)
	return c.finishClean(ctx, upid, err)
}

// MoveDisk implements cluster.Editor.
func (c *Client) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	params := map[string]string{"disk": key, "target-vmid": strconv.Itoa(int(to)), "target-disk": toKey}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	var upid string
	err := c.change(ctx, http.MethodPost, vmPath(vm, "move_disk"), params, &upid)
	return c.finish(ctx, upid, err)
}

// withDigest makes a change conditional on the configuration that vm was read with.
func withDigest(params map[string]string, vm cluster.VM) error {
	if vm.Digest == "" {
		return fmt.Errorf("%s was read without a digest, so a change could overwrite someone else's", vm)
	}
	params["digest"] = vm.Digest
	return nil
}
