// Package workspace compares and copies files between an agent's workspace and
// a folder of the operator.
//
// # What it keeps
//
// Everything that either side holds is data: nothing is executed, and git is
// never run in either tree. Both trees are walked by descriptors, with openat2
// beneath the root, without links and without leaving the file system, so that
// a tree that changes meanwhile leads nowhere else. Only regular files and
// folders are copied. Links, devices, pipes and sockets are left out, and so is
// every ".git": its hooks and configuration are programs for whoever uses git
// next.
//
// A file is written beside its place and renamed, and belongs to the side that
// it goes to; of its mode the executable bit is kept.
//
// # What it does not keep
//
// What a file says is not looked at. A Makefile or an editor's task file of an
// agent is a program as soon as somebody starts it: read what you pulled.
package workspace
