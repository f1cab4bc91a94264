package images

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Shelf finds and removes ISOs and disk images that are no longer needed.
type Shelf interface {
	Users
	// Nodes lists the nodes of the Proxmox cluster, online and offline.
	Nodes(ctx context.Context) (online, offline []string, err error)
	Storages
	// ISOs lists the ISOs on a storage as that host sees it.
	ISOs(ctx context.Context, host, storage string) ([]StoredISO, error)
	// DiskImages lists the disk images on a storage as that host sees it.
	DiskImages(ctx context.Context, host, storage string) ([]StoredISO, error)
	// DeleteISO removes an ISO or a disk image, even if something uses it. A missing one is not an error.
	DeleteISO(ctx context.Context, iso StoredISO) error
}

// StoredISO is an ISO, or a disk image, on a storage. Its name tells which of the two.
type StoredISO struct {
	Host      string    `json:"host"` // for a shared storage: any host that sees it
	Storage   string    `json:"storage"`
	Shared    bool      `json:"shared"`
	Name      string    `json:"name"`
	SizeBytes int64     `json:"sizeBytes"`
	Changed   time.Time `json:"changed,omitzero"` // by the host's clock; zero if unknown
}

func (i StoredISO) String() string { return i.Name + " on " + i.target().String() }

// Of returns the kind of the file. Shelf lists each kind on its own.
func (i StoredISO) Of() Artefact {
	if strings.HasSuffix(i.Name, ".qcow2") {
		return DiskImage
	}
	return BootISO
}

func (i StoredISO) target() target {
	return target{host: i.Host, storage: i.Storage, info: StorageInfo{Shared: i.Shared}}
}

// ourISO matches Publisher's names of ISOs and disk images; its group is the beginning of the build ID.
var ourISO = regexp.MustCompile(`^recast-v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?-([0-9a-f]{12})-(?:nocloud|metal)-(?:amd64|arm64)\.(?:iso|qcow2)$`)

// ListISOs lists the ISOs, or the disk images, with our names on the given storages, on every online host, sorted.
// unseen describes the places that could not be checked.
func ListISOs(ctx context.Context, shelf Shelf, of Artefact, storages []string) (isos []StoredISO, unseen []string, err error) {
	online, offline, err := shelf.Nodes(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list the Proxmox nodes: %w", err)
	}
	for _, host := range offline {
		unseen = append(unseen, host+" is offline: its own storages were not checked")
	}
	var errs []error
	for _, storage := range storages {
		on, missed, err := listStorage(ctx, shelf, of, storage, online)
		errs = append(errs, err)
		isos, unseen = append(isos, on...), append(unseen, missed...)
	}
	slices.SortFunc(isos, func(a, b StoredISO) int { return strings.Compare(a.order(), b.order()) })
	return isos, unseen, errors.Join(errs...)
}

func (i StoredISO) order() string { return i.Storage + " " + i.Host + " " + i.Name }

// listStorage lists a shared storage once, and a local storage on each host that has it.
func listStorage(ctx context.Context, shelf Shelf, of Artefact, storage string, hosts []string) (isos []StoredISO, unseen []string, err error) {
	for _, host := range hosts {
		info, err := shelf.Storage(ctx, host, storage)
		if errors.Is(err, ErrNoStorage) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("look at storage %q on %s: %w", storage, host, err)
		}
		if !info.Active {
			unseen = append(unseen, fmt.Sprintf("storage %s is not active on %s: it was not checked there", storage, host))
			continue
		}
		// Proxmox before 8.3 refuses to list a type of content that it does not know.
		if of == DiskImage && !slices.Contains(info.Content, of.Content()) {
			unseen = append(unseen, fmt.Sprintf("storage %s does not have the content type %s on %s: it was not checked for %s there", storage, of.Content(), host, of.Plural()))
			continue
		}
		all, err := artefacts[of].list(shelf, ctx, host, storage)
		if err != nil {
			return nil, nil, fmt.Errorf("list %s on storage %q on %s: %w", of.Plural(), storage, host, err)
		}
		for _, iso := range all {
			if ourISO.MatchString(iso.Name) {
				iso.Shared = info.Shared
				isos = append(isos, iso)
			}
		}
		if info.Shared {
			break
		}
	}
	return isos, unseen, nil
}

// Needed says which ISOs and disk images have to stay although no VM has them in a drive.
type Needed struct {
	Names  map[string]string // file name → why: "recast.lock has it"
	Builds map[string]string // build ID → why: "wk1 runs it"
}

func (n Needed) why(name, short string) []string {
	var why []string
	if reason := n.Names[name]; reason != "" {
		why = append(why, reason)
	}
	var builds []string
	for build, reason := range n.Builds {
		if strings.HasPrefix(build, short) {
			builds = append(builds, reason)
		}
	}
	slices.Sort(builds)
	return append(why, builds...)
}

// Verdict is the decision about an ISO or a disk image.
type Verdict struct {
	StoredISO
	Keep    []string `json:"keep,omitempty"` // why the file stays; none: it can go
	Removed bool     `json:"removed"`        // the file no longer exists
}

// JudgeISOs decides for each file whether it can go: nothing refers to it, nothing needs it, and it is older than
// olderThan. The age protects files that other Talos clusters, with their own locks, have just put onto a shared
// storage.
func JudgeISOs(isos []StoredISO, uses []Use, need Needed, olderThan time.Duration, now time.Time) []Verdict {
	verdicts := make([]Verdict, 0, len(isos))
	for _, iso := range isos {
		verdicts = append(verdicts, Verdict{StoredISO: iso, Keep: keepISO(iso.Name, iso.Changed, uses, need, olderThan, now)})
	}
	return verdicts
}

// keepISO says why an ISO stays.
func keepISO(name string, changed time.Time, uses []Use, need Needed, olderThan time.Duration, now time.Time) (keep []string) {
	for _, by := range usersOf(uses, name) {
		keep = append(keep, by+" refers to it")
	}
	if m := ourISO.FindStringSubmatch(name); m != nil {
		keep = append(keep, need.why(name, m[1])...)
	} else {
		keep = append(keep, "it is not one of ours")
	}
	return append(keep, tooYoung(changed, olderThan, now, "it is younger than %s")...)
}

// tooYoung says why something that was made at a time stays. young is the format of that reason; its argument is
// olderThan.
func tooYoung(of time.Time, olderThan time.Duration, now time.Time, young string) []string {
	switch {
	case olderThan == 0:
	case of.IsZero():
		return []string{"its age is unknown (--older-than 0 ignores age)"}
	case now.Sub(of) < olderThan:
		return []string{fmt.Sprintf(young, shortDuration(olderThan))}
	}
	return nil
}

// shortDuration formats a duration without the trailing zeros of String.
func shortDuration(d time.Duration) string {
	text := d.String()
	for _, zeros := range []string{"m0s", "h0m"} {
		if rest, ok := strings.CutSuffix(text, zeros); ok {
			text = rest + zeros[:1]
		}
	}
	return text
}

// Write sends one change. It fails if changes are no longer allowed: see claim.Held.Write.
type Write func(ctx context.Context, send func(context.Context) error) error

// Pruner removes the ISOs and disk images that can go.
type Pruner struct {
	Shelf    Shelf
	Verdicts []Verdict // Removed is set for each file that was removed
	Write    Write
}

// Steps returns one step for each file that has no reason to stay.
func (p Pruner) Steps() []step.Step {
	return removals(p.Verdicts, func(v *Verdict) removal {
		return removal{
			id: "delete-" + v.target().id() + "-" + v.Name, kind: "delete-iso", what: v, keep: v.Keep, removed: &v.Removed,
			gone: func(ctx context.Context) (bool, error) {
				isos, err := artefacts[v.Of()].list(p.Shelf, ctx, v.Host, v.Storage)
				return !slices.ContainsFunc(isos, func(i StoredISO) bool { return i.Name == v.Name }), err
			},
			do: func(ctx context.Context) error {
				return p.Write(ctx, func(ctx context.Context) error { return p.deleteUnused(ctx, v.StoredISO) })
			},
		}
	})
}

// removal says why a thing stays, if it does, and how it is removed.
type removal struct {
	id, kind string
	what     fmt.Stringer
	keep     []string
	removed  *bool
	gone     func(ctx context.Context) (bool, error)
	do       func(ctx context.Context) error
}

// removals returns a step for each thing that has no reason to stay.
func removals[V any](verdicts []V, of func(*V) removal) []step.Step {
	var steps []step.Step
	for i := range verdicts {
		r := of(&verdicts[i])
		if len(r.keep) > 0 {
			continue
		}
		steps = append(steps, step.Step{
			ID: r.id, Kind: r.kind, Title: "delete " + r.what.String(), Risk: step.Destructive, Do: r.do,
			Skip: func(ctx context.Context) (string, error) {
				gone, err := r.gone(ctx)
				if err != nil || !gone {
					return "", err
				}
				*r.removed = true
				return "it is gone", nil
			},
		})
	}
	return steps
}

func (p Pruner) deleteUnused(ctx context.Context, iso StoredISO) error {
	// Proxmox deletes even an ISO in a running VM's drive (API2/Storage/Content.pm), so the uses are read again right
	// before.
	uses, err := p.Shelf.Uses(ctx)
	if err != nil {
		return err
	}
	if by := usersOf(uses, iso.Name); len(by) > 0 {
		return fault.WithHint(fault.PruneRefused.Refusedf("%s is in use by %s now: it stays", iso, strings.Join(by, ", ")), "run recast prune again")
	}
	return p.Shelf.DeleteISO(ctx, iso)
}
