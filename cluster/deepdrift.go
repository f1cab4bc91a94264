package cluster

import "fmt"

// fileDiffers is the code of the reason that a file of an extension is not as
// locked. Labels say nothing of it: a roll does not see it.
const fileDiffers = "extension-file"

// WithFiles adds to how a node stands what the comparison of its files came to.
func (d Drift) WithFiles(c FileCheck, err error) Drift {
	if err != nil {
		d.Unread = append(d.Unread, err.Error())
		return d
	}
	for _, f := range c.Differ {
		d.Reasons = append(d.Reasons, Reason{Code: fileDiffers, Text: f.String(), Old: f.Found, New: f.Wanted})
	}
	if c.More > 0 {
		d.Reasons = append(d.Reasons, Reason{Code: fileDiffers, Text: fmt.Sprintf("%d more files of extensions are not as locked", c.More)})
	}
	d.Notes = append(d.Notes, c.String())
	for _, text := range c.NotCompared {
		d.Notes = append(d.Notes, "not compared: "+text)
	}
	d.Stale = len(d.Reasons) > 0
	return d
}
