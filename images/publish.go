package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Publisher puts the boot ISOs, or the disk images, of a lock onto Proxmox storage.
//
// If the token may make a host download files, an existing file with its name and size counts as published once
// Proxmox has compared its checksum, in each run. Elsewhere only a recorded upload counts, as Verify says.
type Publisher struct {
	Of       Artefact
	Store    Store
	Factory  URLs // where Proxmox can download files
	Cache    *Cache
	Ledger   *Ledger
	Storages []string            // every storage gets the file
	Hosts    map[string][]string // schematic → the hosts whose VMs boot its file; without hosts it is not published
	Delivery Delivery
	Verify   Verify
	// ByImager reports whether the imager built a schematic's file, which then has no URL; nil: the imager built none.
	ByImager func(schematic string) bool
	// Note receives the progress of the step at a path below Step: "publish/default/upload-cephfs",
	// for disk images "publish-disks/default/upload-cephfs". May be nil.
	Note func(path, text string)

	verified map[string]bool // target and file → Proxmox has compared the checksum in this run, or could not
}

// Step returns a tree of steps that end with every file on every storage that needs it. Run it after the Builder's.
func (p Publisher) Step() step.Step {
	p.verified = map[string]bool{}
	return step.Step{
		ID: artefacts[p.Of].publish, Title: fmt.Sprintf("publish %ss", p.Of),
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, name := range p.Ledger.Lock().Names() {
				if len(p.Hosts[name]) > 0 {
					steps = append(steps, p.schematic(name))
				}
			}
			return steps, nil
		},
	}
}

// Published says where the file of a schematic is; "" if the file was not built yet or is missing somewhere.
func (p Publisher) Published(ctx context.Context, name string) (string, error) {
	if _, ok := p.Ledger.Lock().Schematics[name]; !ok {
		return "", fault.WithHint(fault.LockStale.Configf("schematic %q is not in the lock", name), "run `recast lock`")
	}
	j, err := p.job(ctx, name)
	if err != nil {
		return "", err
	}
	return j.published(), nil
}

func (j job) published() string {
	if len(j.present) == 0 || len(j.missing) > 0 {
		return ""
	}
	var places []string
	for _, t := range j.present {
		places = append(places, t.String())
	}
	return j.file.Name + " is on " + strings.Join(places, ", ")
}

// job is the work for one schematic.
type job struct {
	Publisher
	schematic string
	file      schematics.BootFile
	url       string
	own       bool // only recorded uploads count, since a file somewhere can't be compared: a host of a VM may change
	present   []target
	missing   []target // without the file, or with a file of another size under its name
}

// job looks at every target of a schematic. A schematic that was not built yet has none.
func (p Publisher) job(ctx context.Context, name string) (job, error) {
	lock, e := p.Ledger.entry(name)
	j := job{Publisher: p, schematic: name, file: p.Of.File(lock, e), url: p.Factory.ImageURL(p.Of, RequestOf(lock, e))}
	if j.file.SHA256 == "" || len(p.Hosts[name]) == 0 {
		return j, nil
	}
	all, err := targets(ctx, p.Store, p.Of, p.Storages, p.Hosts[name])
	if err != nil {
		return j, err
	}
	var errs []error
	j.own = slices.ContainsFunc(e.Uploads, func(u schematics.Upload) bool { return u.Of() == j.file.Name })
	for _, t := range all {
		why, err := j.mayCompare(ctx, t)
		j.own = j.own || why != "" && j.Verify != VerifyWarn
		errs = append(errs, err)
	}
	for _, t := range all {
		present, err := j.look(ctx, &t)
		switch {
		case err != nil:
			errs = append(errs, err)
		case present:
			j.present = append(j.present, t)
		default:
			j.missing = append(j.missing, t)
		}
	}
	return j, errors.Join(errs...)
}

// Verify says which files on a storage are taken for the lock's where Proxmox may not compare their checksums.
type Verify string

const (
	VerifyOwn     Verify = "own"     // those that recast has uploaded under a name that nobody could take before
	VerifyRequire Verify = "require" // none: publishing is refused
	VerifyWarn    Verify = "warn"    // any of the right name and size
)

// look finds out which name the file has at a target, and whether the file there counts as the lock's.
func (j job) look(ctx context.Context, t *target) (present bool, err error) {
	_, e := j.Ledger.entry(j.schematic)
	record, recorded := e.UploadOf(j.file.Name, t.storage, t.onHost())
	t.name = cmp.Or(record.Name, j.file.Name)
	stored, found, err := j.stored(ctx, *t, t.name)
	present = found && stored.SizeBytes == j.file.SizeBytes
	if j.own {
		return present && recorded && stored.Changed.Equal(record.Changed), err
	}
	t.wrong = found && !present
	return present, err
}

// mayCompare says why Proxmox can't compare the checksum of an existing file at a target, or refuses; "" if it can.
func (j job) mayCompare(ctx context.Context, t target) (why string, err error) {
	if j.Delivery == ByUpload && j.Verify != VerifyRequire {
		return "images.iso.delivery is upload", nil
	}
	why, err = j.Store.MayDownload(ctx, t.host, t.storage)
	if err != nil {
		return "", fmt.Errorf("see whether %s can be checked on %s: %w", j.file.Name, t, err)
	}
	if why != "" && j.Verify == VerifyRequire {
		return "", fault.WithHint(fault.StorageUnusable.Refusedf("%s can't be compared with the lock on %s: %s, and proxmox.publish.verify is require", j.file.Name, t, why),
			"grant it: pveum role add RecastCompare --privs Sys.AccessNetwork, then pveum acl modify /nodes/%s --users USER --tokens TOKEN --roles RecastCompare. "+
				"Or set proxmox.publish.verify to own: recast then boots only what it has uploaded itself", t.host)
	}
	return why, nil
}

func (p Publisher) schematic(name string) step.Step {
	return step.Step{
		ID: name, Title: fmt.Sprintf("publish the %s of schematic %s", strings.TrimSuffix(p.Of.Plural(), "s"), name),
		Skip: func(ctx context.Context) (string, error) { return p.done(ctx, name) },
		Steps: func(ctx context.Context) ([]step.Step, error) {
			j, err := p.job(ctx, name)
			if err != nil {
				return nil, err
			}
			if j.file.SHA256 == "" {
				return nil, fault.WithHint(fault.LockStale.Configf("schematic %q is not built yet", name), "run `recast publish --only build`")
			}
			return j.steps(ctx)
		},
	}
}

// done returns what Published returns, once the checksums were compared wherever possible; "" before.
func (p Publisher) done(ctx context.Context, name string) (string, error) {
	j, err := p.job(ctx, name)
	if err != nil || j.published() == "" {
		return "", err
	}
	if open, err := j.unverified(ctx); err != nil || len(open) > 0 {
		return "", err
	}
	return j.published(), nil
}

func (j job) steps(ctx context.Context) ([]step.Step, error) {
	unverified, err := j.unverified(ctx)
	if err != nil {
		return nil, err
	}
	var steps []step.Step
	for _, t := range unverified {
		steps = append(steps, j.verify(t))
	}
	if len(j.missing) == 0 {
		return steps, nil
	}
	ways := make([]way, len(j.missing))
	for i, t := range j.missing {
		if ways[i], err = j.way(ctx, t); err != nil {
			return nil, err
		}
	}
	steps = append(steps, step.Step{
		ID: "check-storages", Title: "check the space for " + j.file.Name,
		Do: func(ctx context.Context) error { return j.check(ctx, ways) },
	})
	for i, t := range j.missing {
		steps = append(steps, j.deliver(t, ways[i]))
	}
	return steps, nil
}

// stored looks for a file of that name at the target.
func (j job) stored(ctx context.Context, t target, name string) (file StoredISO, found bool, err error) {
	file, found, err = j.Of.Stored(ctx, j.Store, t.host, t.storage, name)
	if err != nil {
		return file, false, fmt.Errorf("look for %s on %s: %w", name, t, err)
	}
	return file, found, nil
}

// check checks everything that can be checked before the first byte is sent.
func (j job) check(ctx context.Context, ways []way) error {
	var errs []error
	if slices.ContainsFunc(ways, func(w way) bool { return w.cached }) {
		errs = append(errs, j.checkCache())
	}
	for _, t := range j.missing {
		if t.info.FreeBytes < j.file.SizeBytes {
			errs = append(errs, fault.WithHint(
				fault.StorageFull.Refusedf("too little space on %s: %s needs %d bytes, %d are free", t, j.file.Name, j.file.SizeBytes, t.info.FreeBytes),
				"recast prune removes %s of ours that nothing uses; or name another storage in %s", j.Of.Plural(), j.Of.Setting()))
		}
		if t.wrong {
			errs = append(errs, j.mayReplace(ctx, t))
		}
	}
	return errors.Join(errs...)
}

func (j job) checkCache() error {
	cached, found, err := j.Cache.look(j.file.Name)
	if err != nil {
		return err
	}
	if !found || cached != j.file {
		return fault.WithHint(fault.LockStale.Configf("%s is not in the cache as the lock has it", j.file.Name), "run `recast publish --only build`")
	}
	return nil
}

// mayReplace refuses to overwrite a file that a VM has in a drive, or would have after a rollback to a snapshot.
// Proxmox itself does not check: it overwrites a file in use (API2/Storage/Status.pm).
func (j job) mayReplace(ctx context.Context, t target) error {
	uses, err := j.Store.Uses(ctx)
	if err != nil {
		return fmt.Errorf("%s is on %s with other content than the lock has, and may only be replaced if nothing uses it: %w", j.file.Name, t, err)
	}
	by := usersOf(uses, t.name)
	if len(by) == 0 {
		return nil
	}
	return fault.WithHint(
		fault.ISODiffers.Refusedf("%s on %s has other content than the lock has, and is in use by %s: it is not overwritten", j.file.Name, t, strings.Join(by, ", ")),
		"an interrupted upload leaves such a file. It is replaced once no drive and no snapshot names it: qm config VMID and qm listsnapshot VMID show what those VMs have, and qm set VMID --ide2 none,media=cdrom ejects it")
}

// Delivery says how files get to their storages.
type Delivery string

// The deliveries. With Auto a host downloads the file if it may and can; otherwise it is uploaded.
const (
	Auto        Delivery = "auto"
	DownloadURL Delivery = "download-url"
	ByUpload    Delivery = "upload"
)

// way is how the file gets to one target.
type way struct {
	download bool
	why      string // for people; "" if the configuration decides
	cached   bool   // the file has to be in the cache
}

// way chooses how the file gets to a target. A host downloads the lock's bytes: Proxmox compares the checksum before
// the file gets its name.
func (j job) way(ctx context.Context, t target) (way, error) {
	upload := way{cached: true}
	if j.Delivery == ByUpload {
		return upload, nil
	}
	why, err := j.noDownload(ctx, t)
	switch {
	case err != nil:
		return way{}, fmt.Errorf("choose how %s gets to %s: %w", j.file.Name, t, err)
	case why == "":
		return way{download: true, why: t.host + " fetches it from " + hostOf(j.url), cached: j.Delivery != DownloadURL}, nil
	case j.Delivery == DownloadURL:
		return way{}, fault.WithHint(fault.StorageUnusable.Refusedf("%s can't get to %s by download-url: %s", j.file.Name, t, why),
			"images.iso.delivery: auto uploads it in such a case")
	}
	upload.why = why
	return upload, nil
}

// noDownload says why the host of a target cannot download the file; "" if it can.
func (j job) noDownload(ctx context.Context, t target) (string, error) {
	switch {
	case t.wrong:
		return "download-url never replaces a file", nil
	case j.ByImager != nil && j.ByImager(j.schematic):
		return BuiltByImager, nil
	}
	return NoDownload(ctx, j.Store, t.host, t.storage, j.url, j.file)
}

// BuiltByImager is the reason why a file that the imager built cannot be downloaded.
const BuiltByImager = "the imager has built it, so no Image Factory has it"

// NoDownload says why a host cannot download the factory's file to a storage; "" if it can.
func NoDownload(ctx context.Context, r Reacher, host, storage, link string, file schematics.BootFile) (why string, err error) {
	why, err = r.MayDownload(ctx, host, storage)
	if err != nil || why != "" {
		return why, err
	}
	reported, err := r.URLSize(ctx, host, link)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return fmt.Sprintf("%s cannot fetch %s: %v", host, link, err), nil
	case reported != file.SizeBytes:
		return fmt.Sprintf("%s reports that %s has %d bytes, but the lock has %d", host, link, reported, file.SizeBytes), nil
	}
	return "", nil
}

func hostOf(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return link
	}
	return u.Hostname()
}

// deliver returns the step that brings the file to a target.
func (j job) deliver(t target, w way) step.Step {
	s := step.Step{
		ID: "upload-" + t.id(), Kind: "upload", Title: fmt.Sprintf("upload %s to %s", j.file.Name, t),
		Skip: func(ctx context.Context) (string, error) {
			if present, err := j.look(ctx, &t); err != nil || !present {
				return "", err
			}
			return "it is on " + t.String(), nil
		},
	}
	send := j.upload
	if w.download {
		s.ID, s.Kind, s.Title = "download-"+t.id(), "download", fmt.Sprintf("download %s to %s", j.file.Name, t)
		send = j.download
	}
	id := s.ID
	s.Do = func(ctx context.Context) error {
		t := t
		if j.own {
			t.name = j.file.NameUpload() // recorded afterwards: a name that is known before can be taken
		}
		return send(ctx, t, id)
	}
	if t.wrong {
		s.Title += ", over a file of another size if nothing uses that"
	}
	if w.why != "" {
		s.Title += " (" + w.why + ")"
	}
	return s
}

func (j job) note(id, text string) {
	if j.Note != nil {
		j.Note(artefacts[j.Of].publish+"/"+j.schematic+"/"+id, text)
	}
}

// upload sends the file from the cache. Proxmox replaces a file of the same name, so upload first checks whether
// anything uses a file that has appeared meanwhile.
func (j job) upload(ctx context.Context, t target, id string) error {
	_, found, err := j.stored(ctx, t, t.name)
	if err == nil && found {
		err = j.mayReplace(ctx, t)
	}
	if err != nil {
		return err
	}
	err = j.Store.Upload(ctx, Upload{
		Host: t.host, Storage: t.storage, Name: t.name, SizeBytes: j.file.SizeBytes, SHA256: j.file.SHA256,
		Open:     func() (io.ReadCloser, error) { return j.Cache.open(j.file.Name) },
		Progress: progress(j.file.SizeBytes, func(text string) { j.note(id, text) }),
	})
	if err != nil {
		return fmt.Errorf("upload to %s: %w", t, err)
	}
	return j.record(ctx, t)
}

// record notes that a target has the lock's bytes now, and records the upload in place of an earlier one.
func (j job) record(ctx context.Context, t target) error {
	j.verified[j.key(t)] = true
	if !j.own {
		return nil
	}
	file, found, err := j.stored(ctx, t, t.name)
	switch {
	case err != nil:
		return err
	case !found || file.SizeBytes != j.file.SizeBytes:
		return fault.ISODiffers.Errorf("%s on %s is not as it was uploaded just now: someone else changes files there", t.name, t)
	}
	_, e := j.Ledger.entry(j.schematic)
	return j.Ledger.record(e.BuildID, func(e *schematics.Locked) {
		e.Uploads = slices.DeleteFunc(slices.Clone(e.Uploads), func(u schematics.Upload) bool {
			return u.Of() == j.file.Name && u.Storage == t.storage && (u.Host == "" || t.onHost() == "" || u.Host == t.host)
		})
		e.Uploads = append(e.Uploads, schematics.Upload{Name: t.name, Storage: t.storage, Host: t.onHost(), Changed: file.Changed})
	})
}

// download makes the host fetch the file. If that fails, download uploads the file if uploads are allowed. A failed
// download may still store the file later, and it is the same file: Proxmox renames it to its name only after it has
// compared the checksum.
func (j job) download(ctx context.Context, t target, id string) error {
	err := j.fetch(ctx, t)
	switch {
	case err == nil:
		return j.record(ctx, t)
	case ctx.Err() != nil || errors.Is(err, ErrNotSent):
		return err
	case j.Delivery == DownloadURL:
		return fault.WithHint(err, "images.iso.delivery: auto uploads it in such a case")
	}
	j.note(id, fmt.Sprintf("%v; uploading it", err))
	return j.upload(ctx, t, id)
}

func (j job) fetch(ctx context.Context, t target) error {
	err := j.Store.Download(ctx, Download{
		Host: t.host, Storage: t.storage, Name: t.name, URL: j.url, SizeBytes: j.file.SizeBytes, SHA256: j.file.SHA256,
	})
	if err != nil {
		return fmt.Errorf("download to %s: %w", t, err)
	}
	j.verified[j.key(t)] = true
	return nil
}

// unverified returns the targets whose file has the right name and size, and whose checksum could be compared with
// the lock's, but was not yet.
func (j job) unverified(ctx context.Context) ([]target, error) {
	var open []target
	for _, t := range j.present {
		if j.verified[j.key(t)] {
			continue
		}
		why, err := j.mayCompare(ctx, t)
		if err != nil {
			return nil, err
		}
		if why == "" {
			open = append(open, t)
		}
	}
	return open, nil
}

func (j job) key(t target) string { return t.id() + " " + j.file.Name }

// verify returns the step that makes Proxmox compare an existing file, whoever stored it, with the lock: download-url
// with a checksum compares the file and downloads nothing (pve-common, Tools.pm, download_file_from_url).
func (j job) verify(t target) step.Step {
	id := "verify-" + t.id()
	return step.Step{
		ID: id, Kind: "verify", Title: fmt.Sprintf("compare the checksum of %s on %s", j.file.Name, t),
		Do: func(ctx context.Context) error {
			err := j.fetch(ctx, t)
			switch {
			case ctx.Err() != nil || errors.Is(err, ErrNotSent):
				return err
			case errors.Is(err, ErrOtherContent):
				if err := j.replace(ctx, t, id, err); err != nil {
					return err
				}
			case err != nil:
				j.note(id, fmt.Sprintf("not compared: %v; its name and size are right", err))
			}
			j.verified[j.key(t)] = true
			return nil
		},
	}
}

// replace uploads the file over a file that has the same name and size, but other bytes.
func (j job) replace(ctx context.Context, t target, id string, differs error) error {
	if err := j.mayReplace(ctx, t); err != nil {
		return err
	}
	if j.Delivery == DownloadURL {
		return fault.WithHint(fault.ISODiffers.Of(fault.As(fault.Refused, differs)), "download-url never replaces a file, and nothing uses this one: "+
			"pvesm free %s:%s/%s on %s, or images.iso.delivery: auto", t.storage, j.Of.Content(), t.name, t.host)
	}
	if err := j.checkCache(); err != nil {
		return err
	}
	j.note(id, "it has other bytes than the lock, and nothing uses it: it is replaced")
	return j.upload(ctx, t, id)
}

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
var ourISO = regexp.MustCompile(`^recast-v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?-([0-9a-f]{12})-(?:nocloud|metal)-(?:amd64|arm64)(?:-[0-9a-f]{16})?\.(?:iso|qcow2)$`)

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
		if strings.HasPrefix(build, short) && !n.superseded(name) {
			builds = append(builds, reason)
		}
	}
	slices.Sort(builds)
	return append(why, builds...)
}

// superseded reports whether a lock has an upload of the same file under another name.
func (n Needed) superseded(name string) bool {
	of := schematics.Upload{Name: name}.Of()
	for other := range n.Names {
		if other != name && other != of && (schematics.Upload{Name: other}).Of() == of {
			return true
		}
	}
	return false
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
