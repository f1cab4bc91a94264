// Package files compares the files of extensions on running nodes with what their images have.
// [Compare] reads them through a [cluster.FileReader] and makes a [FileCheck] for each node.
package files
