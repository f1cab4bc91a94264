package attempt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Exit codes of an attempt. Those of recast are passed on.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitConfig  = 3
	ExitRefused = 4
)

// Attempt is one run of a task.
type Attempt struct {
	Task
	Recast   Recast
	Reporter Reporter
	// Available returns the versions that the cluster of that recast.yaml could be upgraded to, given the
	// versions that it runs. "": not known.
	Available func(ctx context.Context, config, talos, kubernetes string) (newTalos, newKubernetes string)
	Now       func() metav1.Time

	begun bool // recast was started on the plan before, by whatever attempt
}

// Run carries the task out and returns the exit code of the process. What is wrong is reported. An error
// means that this could not be done, or that the attempt itself has failed: then it is in the status, too,
// as far as that can be written.
func (a *Attempt) Run(ctx context.Context) (int, error) {
	code, err := a.run(ctx)
	if err == nil {
		return code, nil
	}
	known, ok := errors.AsType[exit](err)
	if ok {
		code = known.code
	}
	if reported := a.reportError(ctx, code, err); reported != nil {
		return code, errors.Join(err, reported)
	}
	if ok {
		return code, nil
	}
	return code, err
}

func (a *Attempt) run(ctx context.Context) (int, error) {
	if err := a.prepare(); err != nil {
		return ExitFailed, err
	}
	switch a.Kind {
	case Check:
		return a.check(ctx)
	case Plan:
		return a.plan(ctx)
	case Roll, Kubernetes:
		return a.roll(ctx, PlanDir)
	}
	return ExitConfig, fmt.Errorf("unknown kind of task %q", a.Kind)
}

// exit is an error that decides on the exit code.
type exit struct {
	code int
	error
}

func (e exit) Unwrap() error { return e.error }

// reportPatience is how long an error is tried to be reported. It may itself be that nothing can be.
const reportPatience = time.Minute

// reportError writes an error of the attempt itself into the status.
func (a *Attempt) reportError(ctx context.Context, code int, err error) error {
	fields := map[string]any{"outcome": v1alpha1.Outcome{Job: a.Job, ExitCode: int32(code), Message: err.Error()}}
	if a.Kind == Check {
		now := a.Now()
		fields = map[string]any{"check": v1alpha1.Check{Job: a.Job, For: a.For, Started: &now, Ended: &now, ExitCode: int32(code), Problems: []string{err.Error()}}}
	}
	short := *a
	short.Reporter.Patient = min(a.Reporter.Patient, reportPatience)
	return short.report(ctx, fields)
}

// prepare sets what recast takes from its environment. Images are cached on disk, all else is in memory.
func (a *Attempt) prepare() error {
	a.Recast.Env = append(a.Recast.Env, "RECAST_CACHE_DIR="+filepath.Join(ScratchDir, "cache"))
	token, err := os.ReadFile(ProxmoxToken)
	if errors.Is(err, os.ErrNotExist) {
		return nil // missing names it
	}
	a.Recast.Env = append(a.Recast.Env, "PROXMOX_VE_API_TOKEN="+strings.TrimSpace(string(token)))
	return err
}

// locked runs a command that needs recast.lock. With lock: Update it is the one that the operator has kept
// from the last check, and made again when there is none or when it does not fit: registries may be away
// as long as it fits.
func (a *Attempt) locked(ctx context.Context, command ...string) (ended, error) {
	if a.Lock != v1alpha1.LockUpdate {
		return a.Recast.run(ctx, nil, command...)
	}
	kept, err := os.ReadFile(filepath.Join(LockDir, KeyLock))
	if err == nil {
		err = os.WriteFile(filepath.Join(a.Recast.Dir, KeyLock), kept, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return ended{}, err
	}
	if err == nil {
		e, err := a.Recast.run(ctx, nil, command...)
		if err != nil || e.Runbook != lockStale {
			return e, err
		}
	}
	if e, err := a.Recast.run(ctx, nil, "lock"); err != nil || e.code != ExitDone {
		return e, err
	}
	return a.Recast.run(ctx, nil, command...)
}

// lockStale is the runbook of a lock that does not fit recast.yaml.
const lockStale = "lock-stale"
