/* SPDX-FileCopyrightText: The mwatch authors
   SPDX-License-Identifier: Apache-2.0 */
/* Reloads the list of runs while it is looked at; where the reader is, stays. */
"use strict";
setInterval(() => { if (!document.hidden) location.reload(); }, 10000);
