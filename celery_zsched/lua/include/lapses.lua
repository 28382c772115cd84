-- lapses: write what read_runs() read. The set of lapses holds the latest 'until' of each entry, so that the runs of one
-- that nobody looks at any more go all the same; and when there is no next call, both keys lapse.
local SWEEP = 20 -- entries whose runs have all lapsed that one call takes away

local function write_runs(entry, found)
  local lines, last = {}, 0
  for _, run in ipairs(found) do
    lines[#lines + 1] = table.concat({stamp(run.till), run.state, run.id, run.since, run.holder}, ' ')
    last = math.max(last, run.till)
  end
  if #lines == 0 then
    call('HDEL', runs, entry)
    call('ZREM', lapses, entry)
    return
  end
  call('HSET', runs, entry, table.concat(lines, '\n'))
  call('ZADD', lapses, stamp(last), entry)
  local latest = call('ZRANGE', lapses, -1, -1, 'WITHSCORES')[2]
  -- Lapses first: servers before 7.2 delete a key at once when the moment passes amid the script. A lapse without its
  -- runs is swept; runs without their lapse would stay for as long as any others do.
  for _, key in ipairs({lapses, runs}) do
    call('PEXPIREAT', key, stamp(math.ceil(tonumber(latest) / 1000)))
  end
end

local function sweep()
  local lapsed = call('ZRANGEBYSCORE', lapses, '-inf', stamp(now), 'LIMIT', 0, SWEEP)
  if #lapsed > 0 then
    call('HDEL', runs, unpack(lapsed))
    call('ZREM', lapses, unpack(lapsed))
  end
end
