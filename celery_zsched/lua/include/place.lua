-- place: where an id stands. Returns the place, the level and the score there; nil for an unknown id.
local function find_waiting(timelines, id)
  for level = 1, #timelines do
    local due = call('ZSCORE', timelines[level], id)
    if due then
      return level - 1, due
    end
  end
  return nil
end

local function find_place(id)
  local level, due = find_waiting(timelines, id)
  if level then
    return 'waiting', level, due
  end
  local score = call('ZSCORE', leases, id)
  if score then
    return 'leased', nil, score
  end
  score = call('ZSCORE', parked, id)
  if score then
    return 'parked', nil, score
  end
  score = call('ZSCORE', dead, id)
  if score then
    return 'dead', nil, score
  end
  return nil
end

-- Take an id out of the place where it stands; its body, record and notes stay.
local function lift(id, place, level)
  if place == 'waiting' then
    call('ZREM', timelines[level + 1], id)
  elseif place == 'leased' then
    call('ZREM', leases, id)
  elseif place == 'parked' then
    call('ZREM', parked, id)
    call('HDEL', reasons, id)
  elseif place == 'dead' then
    call('ZREM', dead, id)
    call('HDEL', reasons, id)
  end
end
